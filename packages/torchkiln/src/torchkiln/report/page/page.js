"use strict";
window.addEventListener("error", (event) => { document.body.dataset.state = "failed: " + event.message; });

const report = JSON.parse(document.getElementById("data").textContent);
const WIDTH = 168, HEIGHT = 40, GAP_X = 18, GAP_Y = 30, PAD = 14, HEAD = 28, PER_ROW = 6, RUN = 40;
const BY_CHOICE = new Set(["min-block-size", "border-cost", "torch-executed-op", "torch-executed-module", "node-override", "constant"]);
const refusals = new Map(report.rejections.map((item) => [item.node, item]));
const opened = new Set();

function element(tag, className, text, parent) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  if (parent) parent.append(made);
  return made;
}
function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  while (count >= 1000 && unit < 4) { count /= 1000; unit += 1; }
  return (unit && count < 100 ? count.toFixed(1) : Math.round(count)) + " " + units[unit];
}
function flops(count) { return count >= 1e9 ? (count / 1e9).toFixed(2) + " GFLOP" : (count / 1e6).toFixed(2) + " MFLOP"; }
function plain(target) { return target.replace(/^aten\./, "").replace(/\.default$/, ""); }
function counted(names) {
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) || 0) + 1);
  const sorted = [...counts].sort((a, b) => b[1] - a[1]);
  const shown = sorted.slice(0, 4).map(([name, count]) => count > 1 ? name + " x" + count : name);
  return shown.join(", ") + (sorted.length > 4 ? ", ..." : "");
}
function kindOf(call, segment) {
  if (segment.kind === "engine") return "engine";
  const refusal = refusals.get(call.name);
  return refusal && !BY_CHOICE.has(refusal.rule) ? "torch" : "small";
}

// Rooms: the inputs, the segments in call order, the results. Each has a tree of modules with calls as leaves.
function group(key, label, path) { return { key, label, path, children: [], calls: [], modules: new Map() }; }
function treeOf(room) {
  const root = group(room.name + "|", "", "");
  for (const call of room.details) {
    let at = root, path = "";
    for (const part of call.module ? call.module.split(".") : []) {
      path = path ? path + "." + part : part;
      if (!at.modules.has(part)) {
        const made = group(room.name + "|" + path, path, path);
        at.modules.set(part, made);
        at.children.push(made);
      }
      at.calls.push(call);
      at = at.modules.get(part);
    }
    at.calls.push(call);
    at.children.push({ call, parent: at });
  }
  return chunk(root);
}
function chunk(node) {
  // A long run of calls that no module folds is folded by position.
  node.children.forEach((child) => { if (!child.call) chunk(child); });
  if (node.children.length <= 60) return node;
  const runs = [];
  for (let at = 0; at < node.children.length; at += RUN) {
    const part = node.children.slice(at, at + RUN);
    const run = group(node.key + "#" + at, "calls " + (at + 1) + " to " + (at + part.length), node.path);
    run.children = part;
    run.calls = part.flatMap((child) => child.call ? [child.call] : child.calls);
    part.forEach((child) => { if (child.call) child.parent = run; });
    runs.push(run);
  }
  node.children = runs;
  return node;
}
const outside = (name, label, names) => ({
  name, label, kind: "outside", calls: names, details: names.map((item) => ({ name: item, target: item, module: "", reads: [], flops: 0, result: "" })),
});
const results = outside("results", "results", report.results.map((name) => "result: " + name));
results.details.forEach((call, index) => call.reads.push(report.results[index]));
const rooms = [outside("inputs", "inputs", report.inputs), ...report.segments, results].filter((room) => room.details.length || room.kind !== "outside");
for (const room of rooms) room.tree = treeOf(room);
const places = new Map();   // segment of each call by "segment|call"
const maker = new Map();    // name of the room that makes a call's result
for (const room of rooms) for (const call of room.details) { places.set(room.name + "|" + call.name, call); maker.set(call.name, room.name); }

function visible(node, items) {
  for (const child of node.children) {
    if (child.call) items.push({ label: plain(child.call.target), calls: [child.call], parent: child.parent, call: child.call });
    else if (opened.has(child.key) || child.calls.length === 1) visible(child, items);
    else items.push({ label: child.label, calls: child.calls, parent: node, module: child });
  }
  return items;
}
function openAll(node) { for (const child of node.children) if (!child.call) { opened.add(child.key); openAll(child); } }
function openFew() {
  let budget = 26 - rooms.reduce((sum, room) => sum + room.tree.children.length, 0);
  const waiting = rooms.flatMap((room) => room.tree.children.filter((child) => !child.call));
  while (waiting.length && budget > 0) {
    const node = waiting.shift();
    if (node.children.length - 1 > budget) continue;
    budget -= node.children.length - 1;
    opened.add(node.key);
    waiting.push(...node.children.filter((child) => !child.call));
  }
}

function arrange(room, items, rowsAbove) {
  // Layers by longest path along reads inside the room; folded modules may read one another, then the earlier one is above.
  const home = new Map();
  items.forEach((item, index) => item.calls.forEach((call) => home.set(call.name, index)));
  items.forEach((item, index) => {
    item.layer = 0;
    for (const call of item.calls) for (const read of call.reads) {
      const from = home.get(read);
      if (from !== undefined && from < index) item.layer = Math.max(item.layer, items[from].layer + 1);
    }
  });
  const layers = [];
  items.forEach((item) => (layers[item.layer] = layers[item.layer] || []).push(item));
  let y = HEAD;
  for (const layer of layers.filter(Boolean)) {
    for (const item of layer) {
      const froms = item.calls.flatMap((call) => call.reads.map((read) => rowsAbove.get(read)).filter((at) => at !== undefined));
      item.wish = froms.length ? froms.reduce((sum, at) => sum + at, 0) / froms.length : 0;
    }
    layer.sort((a, b) => a.wish - b.wish);
    for (let start = 0; start < layer.length; start += PER_ROW) {
      const row = layer.slice(start, start + PER_ROW);
      row.forEach((item, index) => {
        item.x = PAD + index * (WIDTH + GAP_X);
        item.y = y;
        item.calls.forEach((call) => rowsAbove.set(call.name, item.x));
      });
      y += HEIGHT + GAP_Y;
    }
  }
  return { height: y - GAP_Y + PAD, width: Math.max(...items.map((item) => item.x + WIDTH), 440) + PAD };
}

function draw() {
  const box = document.getElementById("rooms"), svg = document.getElementById("arrows");
  box.replaceChildren();
  svg.replaceChildren();
  const rowsAbove = new Map(), at = new Map(), all = [];
  let top = 20, widest = 0;
  for (const room of rooms) {
    const items = visible(room.tree, []);
    const size = arrange(room, items, rowsAbove);
    const frame = element("div", "room " + room.kind, undefined, box);
    Object.assign(frame.style, { left: "40px", top: top + "px", width: size.width + "px", height: size.height + "px" });
    frame.dataset.segment = room.name;
    const title = element("h3", "", room.label || room.name, frame);
    if (room.kind !== "outside") {
      const layers = room.layers ? ", " + room.layers + " layers" : "";
      element("small", "", "  " + room.calls.length + " calls" + layers + figures(room), title);
      title.title = borderText(room);
    }
    for (const item of items) {
      drawItem(item, room, frame);
      item.top = top + item.y;
      item.left = 40 + item.x;
      item.room = room;
      all.push(item);
      item.calls.forEach((call) => at.set(room.name + "|" + call.name, item));
    }
    top += size.height + 46;
    widest = Math.max(widest, size.width);
  }
  document.querySelector("main").style.height = top + "px";
  svg.setAttribute("width", widest + 120);
  svg.setAttribute("height", top);
  drawArrows(svg, all, at);
  document.body.dataset.state = "drawn";
}

function drawItem(item, room, frame) {
  const kinds = item.calls.map((call) => room.kind === "outside" ? "outside" : kindOf(call, room));
  const kind = kinds.includes("torch") ? "torch" : kinds[0];
  const made = item.box = element("div", "item " + kind + (item.module ? " module" : ""), undefined, frame);
  Object.assign(made.style, { left: item.x + "px", top: item.y + "px", width: WIDTH + "px" });
  element("b", "", item.label, made);
  const parentPath = item.call ? item.call.module : "";
  const under = item.module ? item.calls.length + " calls: " + counted(item.calls.map((call) => plain(call.target))) : parentPath || item.call.result;
  const line = element("span", item.call && item.parent && item.parent.key ? "path" : "", under, made);
  if (item.call) made.dataset.call = item.call.name;
  if (item.module) {
    made.dataset.module = item.module.key;
    made.addEventListener("click", () => { opened.add(item.module.key); hide(); draw(); });
  } else if (item.parent && opened.has(item.parent.key)) {
    line.addEventListener("click", (event) => { event.stopPropagation(); opened.delete(item.parent.key); hide(); draw(); });
  }
  made.addEventListener("mouseenter", () => show(item));
  made.addEventListener("mouseleave", hide);
}

function drawArrows(svg, all, at) {
  const drawn = new Map();
  for (const item of all) {
    item.paths = [];
    for (const call of item.calls) for (const read of call.reads) {
      const from = at.get(item.room.name + "|" + read) || at.get(maker.get(read) + "|" + read);
      if (!from || from === item) continue;
      const key = all.indexOf(from) + ">" + all.indexOf(item);
      if (!drawn.has(key)) drawn.set(key, { from, to: item, values: new Set() });
      drawn.get(key).values.add(read);
    }
  }
  const ns = "http://www.w3.org/2000/svg";
  const marker = document.createElementNS(ns, "marker");
  for (const [name, value] of Object.entries({ id: "tip-of-arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" })) marker.setAttribute(name, value);
  const head = document.createElementNS(ns, "path");
  head.setAttribute("d", "M0 0 L8 4 L0 8 z");
  head.setAttribute("style", "fill:#55606c;stroke:none");
  marker.append(head);
  svg.append(marker);
  for (const { from, to, values } of drawn.values()) {
    const x1 = from.left + WIDTH / 2, y1 = from.top + HEIGHT, x2 = to.left + WIDTH / 2, y2 = to.top;
    const down = y2 > y1, bend = Math.min(Math.max(Math.abs(y2 - y1) / 2, 18), 90);
    const side = down && y2 - y1 > 1.5 * (HEIGHT + GAP_Y) ? (x1 <= x2 ? -1 : 1) * (WIDTH / 2 + 14) : 0;
    const path = document.createElementNS(ns, "path");
    const middle = (y1 + y2) / 2;
    path.setAttribute("d", side
      ? `M${x1} ${y1} C${x1} ${y1 + 30} ${x1 + side} ${y1 + 20} ${x1 + side} ${middle} S${x2} ${y2 - 40} ${x2} ${y2}`
      : `M${x1} ${y1} C${x1} ${y1 + bend} ${x2} ${y2 - bend} ${x2} ${y2}`);
    path.setAttribute("marker-end", "url(#tip-of-arrow)");
    if (from.room !== to.room) path.setAttribute("class", "border");
    path.dataset.values = [...values].join(" ");
    svg.append(path);
    from.paths.push(path);
    to.paths.push(path);
  }
}

function figures(room) {
  // A file of an earlier version does not hold them.
  return room.flops === null ? "" : ", " + flops(room.flops) + ", weights " + bytes(room.weight_bytes) + ", border " + bytes(room.border_bytes);
}
function borderText(room) {
  const line = (value) => "  " + value.name + ": " + value.type + ", " + bytes(value.num_bytes)
    + (value.data_dependent ? ", size depends on data" : "")
    + Object.entries(value.profile).map(([name, sizes]) => ", " + name + " = " + sizes.join(" / ")).join("");
  return "in:\n" + room.inputs.map(line).join("\n") + "\nout:\n" + room.outputs.map(line).join("\n");
}
function describe(call) {
  const lines = [call.name + " = " + call.target + "(" + call.reads.join(", ") + ")"];
  if (call.result) lines.push(call.result + (call.flops ? ", " + flops(call.flops) : ""));
  if (call.module) lines.push("module: " + call.module);
  if (call.where) lines.push(call.where);
  return lines.join("\n");
}
function reasonOf(item) {
  return "stays in PyTorch [" + item.rule + "]: " + item.message + (item.fix ? "\nfix: " + item.fix : "");
}
function show(item) {
  const lines = item.call ? [describe(item.call)] : [item.module.label + ": " + item.calls.length + " calls, " + flops(item.calls.reduce((sum, call) => sum + call.flops, 0))];
  const reasons = item.room.kind === "torch" ? item.calls.map((call) => refusals.get(call.name)).filter(Boolean) : [];
  const shown = item.call ? reasons.map(reasonOf) : [...new Set(reasons.map((reason) => plain(reason.target) + ": " + reasonOf(reason)))].slice(0, 6);
  const tip = document.getElementById("tip");
  tip.textContent = [...lines, ...shown].join("\n\n");
  tip.hidden = false;
  const place = item.box.getBoundingClientRect();
  tip.style.left = Math.max(8, Math.min(place.left + window.scrollX, window.scrollX + window.innerWidth - 580)) + "px";
  tip.style.top = place.bottom + window.scrollY + 6 + "px";
  item.paths.forEach((path) => path.classList.add("lit"));
}
function hide() {
  document.getElementById("tip").hidden = true;
  document.querySelectorAll(".lit").forEach((lit) => lit.classList.remove("lit"));
}

function writeHead() {
  const engines = report.segments.filter((segment) => segment.kind === "engine").length;
  document.getElementById("summary").textContent = engines + " engine segments (" + report.engine + "), " + (report.segments.length - engines)
    + " in PyTorch, " + report.segments.reduce((sum, segment) => sum + segment.calls.length, 0) + " calls. "
    + Object.entries(report.stage_ms).map(([stage, ms]) => stage + " " + Math.round(ms) + " ms").join(", ");
  for (const [name, share] of Object.entries(report.shares)) {
    if (share === null) continue;
    const box = element("div", "share", (share * 100).toFixed(1) + " % of " + (name === "flops" ? "FLOPs" : name) + " in engines", document.getElementById("shares"));
    element("i", "", undefined, element("div", "bar", undefined, box)).style.width = share * 100 + "%";
  }
  const body = document.querySelector("#reasons tbody");
  for (const item of report.rejections) {
    const row = element("tr", "", undefined, body);
    const link = element("a", "", plain(item.target) + " (" + item.node + ")", element("td", "", undefined, row));
    link.href = "#" + encodeURIComponent(item.node);
    for (const text of [item.rule, item.message, item.where || "", item.fix]) element("td", "", text, row);
  }
  if (!report.rejections.length) element("td", "", "Nothing: every call is in an engine.", element("tr", "", undefined, body)).colSpan = 5;
}
function follow() {
  // A link to a call unfolds the modules around it and shows its details.
  const name = decodeURIComponent(location.hash.slice(1));
  const room = rooms.find((each) => each.details.some((call) => call.name === name) && each.kind !== "engine")
    || rooms.find((each) => each.details.some((call) => call.name === name));
  if (!name || !room) return;
  const open = (node) => node.children.some((child) => {
    if (child.call) return child.call.name === name;
    if (!open(child)) return false;
    opened.add(child.key);
    return true;
  });
  open(room.tree);
  draw();
  const box = document.querySelector(`[data-segment="${room.name}"] [data-call="${CSS.escape(name)}"]`);
  box.scrollIntoView({ block: "center" });
  box.dispatchEvent(new MouseEvent("mouseenter"));
  box.classList.add("lit");
}

writeHead();
openFew();
draw();
document.getElementById("unfold").addEventListener("click", () => { rooms.forEach((room) => openAll(room.tree)); draw(); });
document.getElementById("fold").addEventListener("click", () => { opened.clear(); draw(); });
window.addEventListener("hashchange", follow);
follow();
