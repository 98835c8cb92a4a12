// The node at a glance.

import { byId, bytes, cores, h, History, nanos, s, setText, spark } from "./dom.js";

const tiers = new Map();

// What the whole width of a tier's gauge stands for, bytes: its last mark; without one, as much as kubepods' stands for.
function scale(tier, node) {
  const { memory, armedLevelBytes: level, convergence } = tier;
  const last = Math.max(level ?? 0, memory?.limitBytes ?? 0, convergence?.targetBytes ?? 0);
  const kubepods = node.tiers.find((other) => other.name === "kubepods");
  const of = tier === kubepods ? Math.max(last, node.allocatableMemoryBytes) : last || (kubepods ? scale(kubepods, node) : 0);
  return Math.max(memory?.usageBytes ?? 0, of, 1);
}

// Memory of a tier against its marks, all on one scale.
class Gauge {
  constructor(name) {
    this.bar = s("svg", { class: "gauge", viewBox: "0 0 1000 20", preserveAspectRatio: "none", role: "img" });
    this.title = s("title");
    this.usage = s("rect", { class: "usage", x: 0, y: 2, height: 16 });
    this.working = s("rect", { class: "working", x: 0, y: 2, height: 16 });
    this.marks = Object.fromEntries(["level", "limit", "target"].map((kind) => [kind, s("line", { class: kind, y1: 0, y2: 20 })]));
    this.bar.append(this.title, s("rect", { class: "frame", x: 0, y: 2, width: 1000, height: 16 }), this.usage, this.working, ...Object.values(this.marks));
    this.memory = h("p");
    this.key = h("p", { class: "key" });
    this.cpu = h("span");
    this.spark = spark();
    this.history = new History();
    this.element = h("div", { class: "tier" }, h("h3", {}, name), this.memory, this.bar, this.key, h("div", { class: "cell" }, this.cpu, this.spark));
  }

  show(tier, node) {
    const { memory, armedLevelBytes: level, convergence } = tier;
    const limit = memory?.limitBytes;
    const target = convergence?.targetBytes;
    const usage = memory?.usageBytes ?? 0;
    const whole = scale(tier, node);
    const at = (n) => Math.min(1000, (1000 * n) / whole);
    this.usage.setAttribute("width", at(usage));
    this.working.setAttribute("width", at(memory?.workingSetBytes ?? 0));
    const said = [];
    for (const [kind, value, words] of [
      ["level", level, "podwarden acts at"],
      ["limit", limit, "limit"],
      ["target", target, "reserve leaves"],
    ]) {
      const mark = this.marks[kind];
      mark.classList.toggle("unseen", value == null);
      mark.setAttribute("visibility", value == null ? "hidden" : "visible");
      if (value == null) continue;
      mark.setAttribute("x1", at(value));
      mark.setAttribute("x2", at(value));
      said.push(`${words} ${bytes(value)}`);
    }
    if (convergence?.gapBytes) said.push(`${bytes(convergence.gapBytes)} above its reserve`);
    if (convergence?.reclaimedBytes) said.push(`${bytes(convergence.reclaimedBytes)} of page cache dropped`);
    const words = `${bytes(usage)} in use, ${bytes(memory?.workingSetBytes)} working set`;
    setText(this.memory, words);
    setText(this.key, said.join(", ") || "nothing is armed");
    setText(this.title, `Memory of ${tier.name}: ${[words, ...said].join(", ")}`);
    this.history.push(tier.cpu.usageNanoCores);
    const throttled = tier.cpu.throttling?.throttledNanoSeconds;
    setText(this.cpu, `${cores(tier.cpu.usageNanoCores)} of ${node.cpus} CPUs${throttled ? `, held back ${nanos(throttled)} so far` : ""}`);
    this.spark.draw(this.history);
  }
}

export function showNode(node) {
  document.title = `${node.nodeName || "node"} · podwarden`;
  setText(byId("node-name"), node.nodeName);
  const mode = node.mode === "enforce" ? "enforces" : "observes, changes nothing";
  const facts = [mode, `profile ${node.profile}`, `cgroup ${node.cgroupVersion}`, `since ${node.startTime.slice(0, 19).replace("T", " ")}`];
  setText(byId("facts"), facts.join(" · "));
  for (const tier of node.tiers) {
    let gauge = tiers.get(tier.name);
    if (!gauge) {
      gauge = new Gauge(tier.name);
      tiers.set(tier.name, gauge);
      byId("tiers").append(gauge.element);
    }
    gauge.show(tier, node);
  }
  showReclaimed(node.reclaimed);
  showDegradations(node);
}

function showReclaimed(reclaimed) {
  const list = byId("reclaimed");
  list.hidden = !reclaimed;
  if (!reclaimed) return;
  const offer = (name, { cpuMilli, memoryBytes, heldCpuMilli, heldMemoryBytes }) =>
    h("div", {}, h("dt", {}, `offered to ${name} pods`),
      h("dd", {}, `${cpuMilli}m CPU (${heldCpuMilli}m taken), ${bytes(memoryBytes)} (${bytes(heldMemoryBytes)} taken)`));
  list.replaceChildren(offer("batch", reclaimed.batch), offer("mid", reclaimed.mid));
}

let shown = "";

function showDegradations(node) {
  const sources = node.podSources.filter((source) => source.problem).map((source) => `pods from ${source.name}: ${source.problem}`);
  const runtime = node.runtime?.problem ? [`container runtime: ${node.runtime.problem}`] : [];
  const lost = Object.entries(node.kernelDrops).filter(([kind, n]) => n && kind !== "untracedSwitches");
  const drops = lost.map(([kind, n]) => `the kernel programs could not deliver ${n} ${kind}`);
  const all = [...node.degradations, ...sources, ...runtime, ...drops];
  // Unchanged sentences are not read out again.
  if (all.join("\n") === shown) return;
  shown = all.join("\n");
  const section = byId("degradations");
  section.hidden = all.length === 0;
  section.querySelector("ul").replaceChildren(...all.map((text) => h("li", {}, text)));
}
