const SVG = "http://www.w3.org/2000/svg";
const MARGIN = { top: 10, right: 14, bottom: 38, left: 58 };

function drawn(parent, name, attributes = {}, text = null) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

function made(parent, name, attributes = {}, text = null) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== null) element.textContent = text;
  parent.append(element);
  return element;
}

function shown(value) {
  const size = Math.abs(value);
  const extreme = size !== 0 && (size < 1e-4 || size >= 1e6);
  const text = extreme ? value.toExponential(2) : String(Number(value.toPrecision(4)));
  return text.replace("-", "\u2212");
}

// 1, 2 or 5 times a power of ten, so that about `count` steps cover the range.
function tickStep(range, count) {
  const power = 10 ** Math.floor(Math.log10(range / count));
  const share = range / count / power;
  return power * (share > 5 ? 10 : share > 2 ? 5 : share > 1 ? 2 : 1);
}

// Whole numbers: the first, the last, and round ones between them.
function wholeTicks(first, last, count) {
  const step = Math.max(1, tickStep(Math.max(1, last - first), count));
  const ticks = [first];
  for (let at = step * (Math.floor(first / step) + 1); at <= last - step / 2; at += step) ticks.push(at);
  return first < last ? [...ticks, last] : ticks;
}

function linearScale(low, high, from, to) {
  if (!(high > low)) [low, high] = [low - (Math.abs(low) || 1) * 0.1, low + (Math.abs(low) || 1) * 0.1];
  const scale = (value) => from + ((value - low) / (high - low)) * (to - from);
  scale.inverse = (place) => low + ((place - from) / (to - from)) * (high - low);
  scale.ticks = (count) => {
    const step = tickStep(high - low, count);
    const ticks = [];
    for (let at = Math.ceil(low / step); at * step <= high * (1 + 1e-12); at += 1) ticks.push(at * step);
    return ticks;
  };
  return scale;
}

function logScale(low, high, from, to) {
  if (!(high > low)) [low, high] = [low / 2, low * 2];
  const inner = linearScale(Math.log10(low), Math.log10(high), from, to);
  const scale = (value) => inner(Math.log10(value));
  scale.inverse = (place) => 10 ** inner.inverse(place);
  scale.ticks = () => {
    const multiples = Math.log10(high / low) > 3 ? [1] : [1, 2, 5];
    const ticks = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
      for (const multiple of multiples) {
        const tick = multiple * 10 ** power;
        if (tick >= low && tick <= high) ticks.push(tick);
      }
    }
    return ticks.length > 2 ? ticks : linearScale(low, high, from, to).ticks(5);
  };
  return scale;
}

let clips = 0;

// Empties the picture and draws its axes; returns the scales and a group that is cut at the frame.
function frame(svg, ranges) {
  const { width, height } = svg.getBoundingClientRect();
  svg.replaceChildren();
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  const right = width - MARGIN.right;
  const bottom = height - MARGIN.bottom;
  const x = linearScale(...ranges.x, MARGIN.left, right);
  const y = (ranges.log ? logScale : linearScale)(...ranges.y, bottom, MARGIN.top);
  for (const tick of y.ticks(5)) {
    drawn(svg, "line", { class: "rule", x1: MARGIN.left, x2: right, y1: y(tick), y2: y(tick) });
    drawn(svg, "text", { class: "tick", x: MARGIN.left - 8, y: y(tick) + 4, "text-anchor": "end" }, shown(tick));
  }
  const count = Math.max(3, width / 110);
  for (const tick of ranges.whole ? wholeTicks(...ranges.x, count) : x.ticks(count)) {
    drawn(svg, "line", { class: "rule", x1: x(tick), x2: x(tick), y1: bottom, y2: bottom + 4 });
    drawn(svg, "text", { class: "tick", x: x(tick), y: bottom + 17, "text-anchor": "middle" }, shown(tick));
  }
  drawn(svg, "text", { class: "tick", x: right, y: bottom + 33, "text-anchor": "end" }, ranges.name);
  clips += 1;
  const clip = drawn(svg, "clipPath", { id: `clip-${clips}` });
  drawn(clip, "rect", { x: MARGIN.left - 6, y: 0, width: Math.max(0, width - MARGIN.left + 6), height: bottom });
  const group = drawn(svg, "g", { "clip-path": `url(#clip-${clips})` });
  return { x, y, group, width, height, bottom };
}

// A path through the points; a missing value lifts the pen.
function path(points) {
  let pen = "M";
  let text = "";
  for (const [x, y] of points) {
    if (!Number.isFinite(x) || !Number.isFinite(y)) {
      pen = "M";
      continue;
    }
    text += `${pen}${x.toFixed(1)},${y.toFixed(1)}`;
    pen = "L";
  }
  return text;
}

// Redraws whenever the picture's size changes: on a turned phone, in an opened fold.
function redrawn(svg, draw) {
  new ResizeObserver(() => requestAnimationFrame(draw)).observe(svg.parentElement);
}
