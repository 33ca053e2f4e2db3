// The model's graph: a row for each layer in the order in which data flow, arcs for what skips layers.

const NODE = { width: 300, height: 38, gap: 18, arc: 18 };

function drawGraph(graph) {
  const nodes = graph.nodes, total = nodes.reduce((sum, node) => sum + node.parameters, 0) || 1;
  const skips = graph.edges.filter(([a, b]) => b !== a + 1);
  const lanes = laneOf(skips), right = NODE.arc * (Math.max(-1, ...lanes) + 1) + 16;
  const top = (i) => 4 + i * (NODE.height + NODE.gap), width = NODE.width + right + 8;
  const middle = NODE.width / 2;
  const svg = s("svg", { viewBox: `0 0 ${width} ${top(nodes.length)}`, width, height: top(nodes.length), role: "img", "aria-label": "graph of the model" },
    s("defs", {}, s("marker", { id: "tip", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" }, s("path", { d: "M0 0L8 4L0 8z" }))),
    graph.edges.filter(([a, b]) => b === a + 1).map(([a, b]) =>
      s("path", { d: `M${middle} ${top(a) + NODE.height}V${top(b) - 1}`, "marker-end": "url(#tip)" })),
    skips.map(([a, b], i) => {
      const x = NODE.width + 10 + lanes[i] * NODE.arc, from = top(a) + NODE.height * 0.7, to = top(b) + NODE.height * 0.3;
      return s("path", { d: `M${NODE.width} ${from}H${x - 6}Q${x} ${from} ${x} ${from + 6}V${to - 6}Q${x} ${to} ${x - 6} ${to}H${NODE.width + 1}`, "marker-end": "url(#tip)" });
    }),
    nodes.map((node, i) => s("g", { transform: `translate(0 ${top(i)})` },
      s("title", {}, `${node.name} ${node.type}(${node.detail})\n${number(node.parameters)} parameters, ${percent(node.parameters / total)} of all`),
      s("rect", { width: NODE.width, height: NODE.height, rx: 7, class: node.parameters ? "held" : null }),
      s("text", { x: 12, y: 16 }, label(node)),
      s("text", { x: 12, y: 31, class: "small" }, cut(node.detail || "", node.parameters ? 36 : 46)),
      s("text", { x: NODE.width - 12, y: 16, "text-anchor": "end", class: "small" }, shape(node.out)),
      node.parameters ? s("text", { x: NODE.width - 12, y: 31, "text-anchor": "end" }, number(node.parameters)) : null)));
  return svg;
}

/** Type and the end of the name, which is what tells layers apart. */
function label({ type, name }) {
  if (type === name) return type;
  const room = 29 - type.length;
  return `${type} ${name.length > room ? `…${name.slice(1 - room)}` : name}`;
}

const cut = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
const shape = (sizes) => (sizes && sizes.length ? sizes.join("×") : "");

/** A lane for each arc, so that arcs that overlap lie side by side. */
function laneOf(skips) {
  const lanes = [];
  skips.forEach(([a, b], i) => {
    let lane = 0;
    while (skips.some(([c, d], j) => j < i && lanes[j] === lane && c < b && a < d)) lane++;
    lanes.push(lane);
  });
  return lanes;
}
