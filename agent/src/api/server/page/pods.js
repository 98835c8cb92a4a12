// The tree of tiers and pods, with sparklines of the rows that are on screen.

import { byId, bytes, cores, h, History, nanos, podName, setText, spark } from "./dom.js";

const FIGURES = ["cpu", "memory", "wait", "stall"];
const TIERS = [
  ["Guaranteed", "Guaranteed (kubepods)"],
  ["Burstable", "Burstable"],
  ["BestEffort", "BestEffort"],
];
const rate = (n) => (n ? `${nanos(n)}/s` : "0");
const FORMAT = { cpu: cores, memory: bytes, wait: rate, stall: rate };

class Row {
  constructor(label, className, click) {
    this.histories = Object.fromEntries(FIGURES.map((name) => [name, new History()]));
    this.cells = FIGURES.map((name) => ({ name, text: h("span"), line: spark() }));
    this.button = h("button", { type: "button", onclick: click }, label);
    const cells = this.cells.map(({ text, line }) => h("td", {}, h("div", { class: "cell" }, text, line)));
    this.element = h("tr", { class: className }, h("th", { scope: "row" }, this.button), ...cells);
    this.element.row = this;
    this.onScreen = false;
  }

  push(figures) {
    for (const name of FIGURES) this.histories[name].push(figures[name]);
    this.latest = figures;
  }

  draw() {
    for (const { name, text, line } of this.cells) {
      setText(text, FORMAT[name](this.latest[name]));
      line.draw(this.histories[name]);
    }
  }
}

// Rates from two passes of counters.
function rates(now, before, seconds) {
  const rate = (key) => (before && seconds > 0 ? Math.max(0, now[key] - before[key]) / seconds : 0);
  return { cpu: now.cpuNanoCores ?? 0, memory: now.usageBytes ?? 0, wait: rate("waitNanos"), stall: rate("stallNanos") };
}

export class Tree {
  constructor(openPod) {
    this.openPod = openPod;
    this.rows = new Map();
    this.before = new Map();
    this.time = null;
    this.seen = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        target.row.onScreen = isIntersecting;
        if (isIntersecting && target.row.latest) target.row.draw();
      }
    }, { rootMargin: "200px" });
    this.groups = new Map(TIERS.map(([qos, title]) => [qos, this.group(qos, title)]));
    byId("filter").addEventListener("input", () => this.arrange());
    byId("order").addEventListener("change", () => this.arrange());
  }

  group(qos, title) {
    const body = h("tbody", { id: `tier-${qos}` });
    const row = new Row(title, "group", () => {
      const open = row.button.getAttribute("aria-expanded") !== "true";
      row.button.setAttribute("aria-expanded", open);
      this.arrange();
    });
    row.button.setAttribute("aria-expanded", "true");
    row.title = title;
    row.body = body;
    body.append(row.element);
    byId("tree").append(body);
    this.seen.observe(row.element);
    return row;
  }

  take({ time, pods }) {
    const at = Date.parse(time);
    const seconds = this.time == null ? 0 : (at - this.time) / 1000;
    if (this.time != null && seconds <= 0) return;
    this.time = at;
    const there = new Set();
    const sums = new Map(TIERS.map(([qos]) => [qos, { cpu: 0, memory: 0, wait: 0, stall: 0, pods: 0 }]));
    for (const pod of pods) {
      there.add(pod.uid);
      const figures = rates(pod, this.before.get(pod.uid), seconds);
      this.before.set(pod.uid, pod);
      const row = this.rows.get(pod.uid) ?? this.add(pod);
      row.qos = pod.qosClass;
      row.element.classList.toggle("evicted", pod.phase === "Evicted");
      setText(row.button, podName(pod));
      row.push(figures);
      const sum = sums.get(pod.qosClass);
      if (!sum) continue;
      for (const name of FIGURES) sum[name] += figures[name];
      sum.pods += 1;
    }
    for (const [uid, row] of this.rows) if (!there.has(uid)) this.remove(uid, row);
    for (const [qos, row] of this.groups) {
      const sum = sums.get(qos);
      setText(row.button, `${row.title}, ${sum.pods} ${sum.pods === 1 ? "pod" : "pods"}`);
      row.push(sum);
    }
    this.arrange();
    for (const row of [...this.rows.values(), ...this.groups.values()]) if (row.onScreen) row.draw();
  }

  add(pod) {
    const row = new Row(podName(pod), "pod", () => this.openPod(pod));
    row.button.setAttribute("aria-haspopup", "dialog");
    this.rows.set(pod.uid, row);
    this.seen.observe(row.element);
    return row;
  }

  remove(uid, row) {
    this.seen.unobserve(row.element);
    row.element.remove();
    this.rows.delete(uid);
    this.before.delete(uid);
  }

  arrange() {
    const filter = byId("filter").value.trim().toLowerCase();
    const order = byId("order").value;
    const names = new Intl.Collator("en", { numeric: true });
    let shown = 0;
    for (const [qos, group] of this.groups) {
      const open = group.button.getAttribute("aria-expanded") === "true";
      const rows = [...this.rows.values()].filter((row) => row.qos === qos);
      for (const row of rows) {
        const hit = row.button.textContent.toLowerCase().includes(filter);
        row.element.hidden = !open || !hit;
        shown += hit ? 1 : 0;
      }
      rows.sort((a, b) =>
        (order === "name" ? 0 : (b.latest?.[order] ?? 0) - (a.latest?.[order] ?? 0)) || names.compare(a.button.textContent, b.button.textContent));
      this.place(group.body, rows);
    }
    setText(byId("shown"), `${shown} of ${this.rows.size}`);
  }

  // Moves no row from under the pointer or the focus.
  place(body, rows) {
    const now = [...body.children].slice(1);
    const same = now.length === rows.length && rows.every((row, i) => row.element === now[i]);
    const held = now.length === rows.length && (body.contains(document.activeElement) || body.matches(":hover"));
    if (same || (held && rows.every((row) => row.element.parentNode === body))) return;
    const focused = document.activeElement;
    body.append(...rows.map((row) => row.element));
    if (focused !== document.activeElement && body.contains(focused)) focused.focus({ preventScroll: true });
  }
}
