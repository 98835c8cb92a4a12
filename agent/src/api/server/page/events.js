// Events as they happen, the newest first. The agent writes their sentences.

import { byId, clock, h, podName, setText } from "./dom.js";

const MOST = 400;
const EXITS = ["processExit", "exitsDropped"];
const CHANGES = ["podAdded", "podRemoved", "containerStarted", "containerStopped"];
const GRAVE = ["eviction", "degraded", "kernelOom"];

export class EventList {
  constructor(openRecord) {
    this.openRecord = openRecord;
    this.list = byId("list");
    this.waiting = [];
    this.seen = 0;
    const choose = () => {
      for (const item of this.list.children) item.hidden = !this.wanted(item.dataset.type);
    };
    byId("with-exits").addEventListener("change", choose);
    byId("with-changes").addEventListener("change", choose);
  }

  wanted(type) {
    if (EXITS.includes(type)) return byId("with-exits").checked;
    return !CHANGES.includes(type) || byId("with-changes").checked;
  }

  add(event) {
    this.seen = Math.max(this.seen, event.id);
    this.enqueue(this.item(event));
    // Only what matters is read out.
    if (GRAVE.includes(event.type) && Date.now() - Date.parse(event.time) < 60_000) setText(byId("latest"), event.text);
  }

  missed(count) {
    this.enqueue(h("li", { class: "degraded", "data-type": "missed" }, `${count} events are missing here: the agent keeps them no more`));
  }

  item(event) {
    const pod = event.pod && event.type !== "eviction" ? `${podName(event.pod)}: ` : "";
    const item = h("li", { class: `${event.type} new`, "data-type": event.type, "data-id": event.id },
      h("time", { datetime: event.time, title: event.time }, clock(event.time)), `${pod}${event.text} `);
    if (event.type === "eviction" || event.type === "kernelOom") {
      const label = `Flight record of event ${event.id}`;
      item.append(h("button", { type: "button", "aria-haspopup": "dialog", "aria-label": label, onclick: () => this.openRecord(event.id) }, "Flight record"));
    }
    item.hidden = !this.wanted(event.type);
    return item;
  }

  // Many at once, as at the start, make one change of the page.
  enqueue(item) {
    this.waiting.push(item);
    if (this.waiting.length === 1) setTimeout(() => this.flush(), 0);
  }

  flush() {
    const items = this.waiting.splice(0).reverse();
    this.list.prepend(...items);
    while (this.list.children.length > MOST) this.drop();
  }

  // Exits go first, then the oldest.
  drop() {
    const exits = this.list.querySelectorAll('[data-type="processExit"]');
    const oldest = exits.length > MOST / 4 ? exits[exits.length - 1] : this.list.lastElementChild;
    oldest.remove();
  }
}
