// Two streams: figures with each sampling pass, events as they happen.

import { byId, setText } from "./dom.js";
import { showNode } from "./node.js";
import { Tree } from "./pods.js";
import { EventList } from "./events.js";
import { openPod, openRecord } from "./details.js";

const tree = new Tree(openPod);
const events = new EventList(openRecord);
const alive = { figures: false, events: false };

function connection() {
  const live = alive.figures && alive.events;
  const status = byId("connection");
  setText(status, live ? "live" : "not connected to the agent: the figures below are the last ones");
  status.classList.toggle("lost", !live);
}

// A refused stream is not tried again by the browser: a new one is opened then.
function follow(name, path, begin) {
  const source = new EventSource(path());
  source.onopen = () => {
    alive[name] = true;
    connection();
  };
  source.onerror = () => {
    alive[name] = false;
    connection();
    if (source.readyState === EventSource.CLOSED) setTimeout(() => follow(name, path, begin), 2000);
  };
  begin(source);
}

follow("figures", () => "v1/live", (source) => {
  source.addEventListener("node", (message) => showNode(JSON.parse(message.data)));
  source.addEventListener("pods", (message) => {
    const pass = JSON.parse(message.data);
    requestAnimationFrame(() => tree.take(pass));
  });
});

follow("events", () => `v1/events?follow=true&text=true&${events.seen ? `after=${events.seen}` : "last=200"}`, (source) => {
  source.onmessage = (message) => events.add(JSON.parse(message.data));
  source.addEventListener("missed", (message) => events.missed(JSON.parse(message.data).missed));
});
