// What a click opens: why a pod's cgroup holds what it holds, and an eviction's flight record.

import { byId, bytes, cores, getJson, h, nanos, podName, s, setText, table } from "./dom.js";

const dialog = byId("details");
byId("close").addEventListener("click", () => dialog.close());

async function open(title, build) {
  setText(byId("details-title"), title);
  const body = byId("details-body");
  body.replaceChildren(h("p", {}, "reading"));
  if (!dialog.open) dialog.showModal();
  try {
    body.replaceChildren(...(await build()).filter((element) => element != null));
  } catch (error) {
    body.replaceChildren(h("p", { role: "alert" }, error.message));
  }
}

export function openPod(pod) {
  open(podName(pod), async () => {
    const [explained, figures] = await Promise.allSettled([
      getJson(`v1/pods/${encodeURIComponent(pod.uid)}/explain`),
      getJson(`v1/pods/${encodeURIComponent(pod.uid)}`),
    ]);
    const why = explained.status === "fulfilled" ? explanation(explained.value) : [h("p", { role: "alert" }, explained.reason.message)];
    return [...why, ...(figures.status === "fulfilled" ? containers(figures.value) : [])];
  });
}

function containers(pod) {
  const row = (of, name) => [name, cores(of.cpu.usageNanoCores), bytes(of.memory?.workingSetBytes), bytes(of.memory?.limitBytes),
    nanos(of.cpu.runQueueWaitNanoSeconds), nanos(of.cpu.throttling?.throttledNanoSeconds), `${of.exits.total}, ${of.exits.oomKilled} by OOM`];
  const rows = [row(pod, "the pod"), ...pod.containers.map((container) => row(container, container.name))];
  return [h("h3", {}, "Figures"), table("Figures of the pod and its containers", ["", "CPU", "Working set", "Limit", "Waited", "Throttled", "Exits"], rows)];
}

function explanation(it) {
  const parts = [h("p", {}, `${it.qosClass}: ${it.classReason}`), it.colocation && h("p", {}, it.colocation), h("h3", {}, "Eviction"), ...eviction(it.eviction)];
  for (const note of it.notes) parts.push(h("p", {}, note));
  if (it.resources.length) {
    const rows = it.resources.map((r) => [r.name, r.cpuRequest, r.cpuLimit, r.memoryRequest, r.memoryLimit]);
    parts.push(h("h3", {}, "Requests and limits"), table("Requests and limits", ["Container", "CPU request", "CPU limit", "Memory request", "Memory limit"], rows));
  }
  for (const { path, exists, values } of it.cgroups) parts.push(h("h3", {}, exists === false ? `${path} (does not exist)` : path), valuesTable(path, values));
  for (const { name, values } of it.containers) parts.push(h("h3", {}, `container ${name}, from its runtime`), valuesTable(name, values));
  return parts;
}

function valuesTable(of, values) {
  const rows = values.map(({ file, value, reason, detail, changesWith, pending }) => {
    const now = pending && (pending.value === value ? "not in force yet: to be written" : `not in force yet: to be written ${pending.value}: ${pending.reason}`);
    return [file, value, [reason, detail, now].filter(Boolean).join("; "), changesWith];
  });
  return table(`Values of ${of}`, ["File", "Value", "Why", "Changes with"], rows);
}

function eviction(it) {
  if (it.standing === "protected") return [h("p", {}, `never (${it.reason})`)];
  if (it.standing === "noCandidate") return [h("p", {}, `not among the candidates, for ${it.reason}`)];
  const neighbour = (word, other) => other && h("li", {}, `${word} ${podName(other.podRef)}: ${other.reason}`);
  return [
    h("p", {}, `place ${it.place} of ${it.candidates}: ${it.reason}`),
    h("ul", {}, neighbour("after", it.after), neighbour("before", it.before), h("li", {}, `changes with ${it.changesWith}`)),
  ];
}

export function openRecord(id) {
  open(`Event ${id}`, async () => {
    const it = await getJson(`v1/events/${id}?text=true`);
    const parts = [h("p", {}, it.text), it.reason && h("p", {}, it.reason)];
    if (it.timeline) parts.push(steps(it));
    const record = it.flightRecord;
    if (!record) return [...parts, h("p", {}, "There is no flight record of it yet: it is complete about a second after the memory is free.")];
    parts.push(...picture(it, record));
    if (record.ranking?.length) {
      const rows = record.ranking.map((r, i) => [`${i + 1}. ${podName(r.pod)}`, bytes(r.usageBytes), bytes(r.workingSetBytes), r.reason]);
      parts.push(h("h3", {}, `Order of eviction, ${record.candidates} in all`), table("Order of eviction", ["Pod", "Usage", "Working set", "Why it stands here"], rows));
    }
    return parts;
  });
}

function moments({ timeline, graceSeconds }) {
  if (!timeline) return [];
  const { crossingNanos: from } = timeline;
  return [["crossing", from], ["wake", timeline.wakeNanos], ["chosen", timeline.verifiedNanos], [graceSeconds ? "told to end" : "killed", timeline.killedNanos], ["freed", timeline.freedNanos]]
    .filter(([, at]) => at != null)
    .map(([name, at]) => [name, at - from]);
}

const since = (nano) => `${nano < 0 ? "−" : "+"}${nanos(Math.abs(nano))}`;

function steps(it) {
  const rows = moments(it).map(([name, at]) => [name, since(at)]);
  if (it.dryRun) rows.push(["killed", "nothing was done: observe mode"]);
  return table("Steps since the crossing", ["Step", "Since the crossing"], rows);
}

const WIDTH = 960, HEIGHT = 360, LEFT = 84, RIGHT = 12, TOP = 26, BOTTOM = 34;

function picture(it, record) {
  const curves = record.curves.filter((curve) => curve.offsetNanos.length);
  if (!curves.length) return [h("p", {}, "It has no curves.")];
  const times = curves.flatMap((curve) => [curve.offsetNanos[0], curve.offsetNanos.at(-1)]);
  const [from, to] = [Math.min(...times), Math.max(...times, Math.min(...times) + 1)];
  const levels = record.levels.filter((level) => curves.some((curve) => curve.scope === level.scope));
  const most = 1.05 * Math.max(...curves.flatMap((c) => c.usageBytes), ...levels.map((l) => l.levelBytes), 1);
  const x = (nano) => LEFT + ((WIDTH - LEFT - RIGHT) * (nano - from)) / (to - from);
  const y = (n) => HEIGHT - BOTTOM - ((HEIGHT - TOP - BOTTOM) * n) / most;
  const name = (curve) => curve.scope ?? podName(curve.pod);
  const drawn = [s("title", {}, `Memory around event ${it.id}: ${curves.map(name).join(", ")}`)];
  for (let i = 0; i <= 4; i += 1) {
    const [at, n] = [from + ((to - from) * i) / 4, (most * i) / 4];
    drawn.push(s("line", { class: "axis", x1: LEFT, x2: WIDTH - RIGHT, y1: y(n), y2: y(n) }),
      s("text", { x: LEFT - 6, y: y(n) + 4, "text-anchor": "end" }, bytes(n)),
      s("text", { x: x(at), y: HEIGHT - 10, "text-anchor": ["start", "middle", "middle", "middle", "end"][i] }, since(at)));
  }
  for (const level of levels) drawn.push(s("line", { class: "level", x1: LEFT, x2: WIDTH - RIGHT, y1: y(level.levelBytes), y2: y(level.levelBytes) }));
  let edge = -Infinity;
  for (const [step, offset] of moments(it)) {
    // The record's origin is the crossing, too.
    const at = x(offset);
    if (offset < from || offset > to) continue;
    drawn.push(s("line", { class: "moment", x1: at, x2: at, y1: TOP, y2: HEIGHT - BOTTOM }));
    // Steps within a few pixels share the first one's label; the table has them all.
    if (at - edge < 40) continue;
    drawn.push(s("text", { x: at, y: TOP - 8, "text-anchor": at > WIDTH - 60 ? "end" : "middle" }, step));
    edge = at;
  }
  curves.forEach((curve, i) => {
    const points = curve.offsetNanos.map((at, k) => `${x(at).toFixed(1)},${y(curve.usageBytes[k]).toFixed(1)}`);
    drawn.push(s("polyline", { class: style(i), points: points.join(" ") }));
  });
  const legend = curves.map((curve, i) => h("li", {}, swatch(style(i)), `${name(curve)}, at most ${bytes(Math.max(...curve.usageBytes))}`));
  for (const level of levels) legend.push(h("li", {}, swatch("level"), `level of ${level.scope}: ${bytes(level.levelBytes)}`));
  const svg = s("svg", { class: "record", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img" }, ...drawn);
  return [h("h3", {}, `Memory (${record.signal})`), svg, h("ul", { class: "legend" }, ...legend)];
}

const style = (i) => `s${(i % 6) + 1} d${(i % 6) + 1}`;
const swatch = (className) => s("svg", { class: "swatch record", viewBox: "0 0 36 10", "aria-hidden": "true" }, s("line", { class: className, x1: 0, x2: 36, y1: 5, y2: 5 }));
