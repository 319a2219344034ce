// Lines of the last ten minutes: a small chart, its time axis, and what it was at the moment under the pointer.
const SLOTS = 120;

// Elements of a chart that the pointer reads, by the chart.
const charts = new Map();

function svgElement(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [attribute, value] of Object.entries(attributes)) element.setAttribute(attribute, value);
  return element;
}
// The place of a sample on the x axis: the newest is at the right edge.
function xOf(at, length) { return SLOTS - (length - 1 - at); }

// `values`: a column of the history. `shown` puts one of them into words.
function spark(values, label, shown) {
  const svg = svgElement("svg", {class: "spark", viewBox: "0 0 120 30", preserveAspectRatio: "none"});
  // What is not known yet is seen to be missing.
  svg.append(svgElement("path", {d: "M0,29.5H120"}));
  const known = (values || []).filter(value => value !== null);
  if (known.length < 2) {
    svg.setAttribute("aria-hidden", "true");
    return svg;
  }
  const most = Math.max(...known);
  svg.setAttribute("role", "img");
  svg.setAttribute("aria-label", label + ": up to " + shown(most) + " in the last ten minutes");
  let points = [];
  const draw = () => {
    if (points.length) svg.append(svgElement("polyline", {points: points.join(" ")}));
    points = [];
  };
  values.forEach((value, at) => {
    if (value === null) { draw(); return; }
    const y = most > 0 ? 28 - value / most * 26 : 28;
    points.push(xOf(at, values.length) + "," + y.toFixed(1));
  });
  draw();
  return svg;
}

// A chart with its time axis.
function chart(values, label, shown) {
  const box = make("div", null, "chart"), svg = spark(values, label, shown), axis = make("div", null, "axis soft");
  const moment = make("span", "", "moment");
  axis.append(make("span", "−10 min"), moment, make("span", "now"));
  axis.setAttribute("aria-hidden", "true");
  box.append(svg, axis);
  const cursor = svgElement("line", {class: "cursor", y1: 0, y2: 30, hidden: ""});
  svg.append(cursor);
  charts.set(svg, {values: values || [], shown, cursor, moment});
  return box;
}

// All charts show the same moment: what happened to one thing is seen beside the others.
function pointAt(share) {
  for (const [svg, {values, shown, cursor, moment}] of charts) {
    if (!svg.isConnected) { charts.delete(svg); continue; }
    const at = share === null ? -1 : Math.round(share * SLOTS) - SLOTS + values.length - 1;
    const value = at < 0 ? undefined : values[at];
    cursor.toggleAttribute("hidden", value === undefined);
    if (value === undefined) { set(moment, ""); continue; }
    const x = String(xOf(at, values.length));
    cursor.setAttribute("x1", x);
    cursor.setAttribute("x2", x);
    set(moment, clockTime(history.at_ms[at]) + ": " + (value === null ? "–" : shown(value)));
  }
}
$("tiles").addEventListener("pointermove", event => {
  const svg = event.target.closest(".chart")?.firstChild;
  if (!svg) { pointAt(null); return; }
  const {left, width} = svg.getBoundingClientRect();
  pointAt(Math.min(1, Math.max(0, (event.clientX - left) / width)));
});
$("tiles").addEventListener("pointerleave", () => pointAt(null));
