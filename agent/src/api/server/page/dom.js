// Elements without markup in strings, figures in units, sparklines.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  // Text only: names that a pod's author chose are never markup.
  element.append(...children.filter((child) => child != null));
  return element;
}

export const h = (tag, attributes = {}, ...children) => fill(document.createElement(tag), attributes, children);
export const s = (tag, attributes = {}, ...children) => fill(document.createElementNS(SVG, tag), attributes, children);
export const byId = (id) => document.getElementById(id);

export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function scaled(value, step, units) {
  let at = 0;
  while (Math.abs(value) >= step && at < units.length - 1) {
    value /= step;
    at += 1;
  }
  const digits = at === 0 || Math.abs(value) >= 100 ? 0 : Math.abs(value) >= 10 ? 1 : 2;
  return `${value.toFixed(digits)}${units[at]}`;
}

export const bytes = (n) => (n == null ? "–" : scaled(n, 1024, ["B", "Ki", "Mi", "Gi", "Ti"]));
export const nanos = (n) => (n == null ? "–" : scaled(n, 1000, [" ns", " µs", " ms", " s"]));
export const cores = (nano) => (nano == null ? "–" : nano >= 1e9 ? `${(nano / 1e9).toFixed(2)} CPU` : `${Math.round(nano / 1e6)}m`);
export const podName = (pod) => (pod.namespace ? `${pod.namespace}/${pod.name}` : pod.name || pod.uid);
export const clock = (time) => time.slice(11, 23);

// Samples of a figure; the oldest fall off.
export class History {
  constructor(kept = 60) {
    this.kept = kept;
    this.values = [];
  }

  push(value) {
    this.values.push(value ?? 0);
    if (this.values.length > this.kept) this.values.shift();
  }

  get last() {
    return this.values.at(-1);
  }
}

// A line of 100 by 20 units, the newest value at its right end.
export function spark() {
  const line = s("polyline");
  const svg = s("svg", { class: "spark", viewBox: "0 0 100 20", preserveAspectRatio: "none", "aria-hidden": "true" }, line);
  svg.draw = (history) => {
    const { values, kept } = history;
    const most = Math.max(...values, Number.EPSILON);
    const step = 100 / (kept - 1);
    const from = 100 - (values.length - 1) * step;
    const points = values.map((v, i) => `${(from + i * step).toFixed(1)},${(19 - (18 * v) / most).toFixed(1)}`);
    line.setAttribute("points", points.join(" "));
  };
  return svg;
}

// One table of a head and rows of texts or elements.
export function table(caption, head, rows) {
  return h(
    "table",
    {},
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, ...head.map((text) => h("th", { scope: "col" }, text)))),
    h("tbody", {}, ...rows.map((row) => h("tr", {}, ...row.map((cell, i) => (i ? h("td", {}, cell ?? "–") : h("th", { scope: "row" }, cell)))))),
  );
}

export async function getJson(path) {
  const answer = await fetch(path, { headers: { accept: "application/json" } });
  const body = await answer.json();
  if (!answer.ok) throw new Error(body.error ?? `${path}: ${answer.status}`);
  return body;
}
