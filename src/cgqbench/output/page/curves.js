const LOGARITHMIC = new Set(["train_loss", "step_size"]);

function swatch(parent, line) {
  const picture = drawn(parent, "svg", { class: "swatch", viewBox: "0 0 26 8", "aria-hidden": "true" });
  const stroke = { stroke: line.colour, "stroke-width": 3, "stroke-dasharray": line.dash.map((length) => 1.2 * length).join(" ") };
  drawn(picture, "line", { x1: 0, x2: 26, y1: 4, y2: 4, ...stroke });
}

// As the tables have it: three digits, four from 1 on, and the spread to the decimals of the mean.
function meanAndSpread({ mean, spread }, accuracy) {
  const size = Math.abs(mean);
  if (!accuracy && (size < 1e-4 || size >= 1e6)) return shown(mean) + (spread ? ` ± ${shown(spread)}` : "");
  const decimals = accuracy ? 2 : Math.max(0, (size < 1 ? 2 : 3) - Math.floor(Math.log10(size)));
  const least = 10 ** -decimals;
  const around = spread < least / 2 ? `<${least.toFixed(decimals)}` : spread.toFixed(decimals);
  return mean.toFixed(decimals) + (spread ? ` ± ${around}` : "");
}

function curves(root, chart) {
  const [metric, axis] = [root.querySelector(".metric"), root.querySelector(".axis")];
  const [log, late] = [root.querySelector(".log"), root.querySelector(".late")];
  const plot = root.querySelector(".plot");
  const svg = plot.querySelector("svg");
  const readout = root.querySelector(".readout");
  const hidden = new Set();
  let picture = null;
  let cursor = null;

  for (const { key, label } of chart.metrics) made(metric, "option", { value: key }, label);
  if (!chart.series.some((line) => line.seconds.length)) axis.parentElement.hidden = true;

  function lines() {
    return chart.series.filter((line) => !hidden.has(line) && metric.value in line.curves).map((line) => {
      const { mean, spread } = line.curves[metric.value];
      const places = axis.value === "seconds" ? line.seconds : mean.map((_, index) => index + 1);
      const points = places.slice(0, mean.length).map((place, index) => ({
        place, mean: mean[index], spread: spread[index] ?? 0,
      }));
      return { line, points: points.filter((point) => point.mean !== null) };
    }).filter(({ points }) => points.length);
  }

  function ranges(found) {
    const all = found.flatMap(({ points }) => points);
    const longest = Math.max(...found.map(({ points }) => points.length));
    const judged = late.checked
      ? found.flatMap(({ points }) => (points.length > longest / 2 ? points.slice(points.length >> 1) : []))
      : all;
    const positive = all.every((point) => point.mean > 0);
    const isLog = log.checked && positive;
    log.disabled = !positive;
    const low = Math.min(...judged.map((point) => point.mean - (isLog ? 0 : point.spread)));
    const high = Math.max(...judged.map((point) => point.mean + point.spread));
    const margin = isLog ? (high / low) ** 0.04 : (high - low) * 0.06;
    const first = axis.value === "seconds" ? 0 : Math.min(...all.map((point) => point.place));
    return {
      x: [first, Math.max(...all.map((point) => point.place))],
      y: isLog ? [low / margin, high * margin] : [low - margin, high + margin],
      log: isLog,
      name: axis.value === "seconds" ? `training seconds${chart.machines > 1 ? ", of different machines" : ""}` : "epoch",
      whole: axis.value !== "seconds",
    };
  }

  function draw() {
    const found = lines();
    readout.hidden = true;
    if (!found.length || !svg.getBoundingClientRect().width) {
      svg.replaceChildren();
      picture = null;
      return;
    }
    const range = ranges(found);
    picture = { ...frame(svg, range), found };
    const { x, y, group } = picture;
    const floor = range.log ? range.y[0] / 10 : -Infinity;
    for (const { line, points } of found) {
      const upper = points.map((point) => [x(point.place), y(point.mean + point.spread)]);
      const lower = points.map((point) => [x(point.place), y(Math.max(point.mean - point.spread, floor))]);
      drawn(group, "path", { class: "band", fill: line.colour, d: `${path([...upper, ...lower.reverse()])}Z` });
    }
    for (const { line, points } of found) {
      const marks = points.map((point) => [x(point.place), y(point.mean)]);
      const stroke = { stroke: line.colour, "stroke-dasharray": line.dash.map((length) => 1.6 * length).join(" ") };
      const shape = drawn(group, "path", { class: "line", ...stroke, d: path(marks) });
      shape.dataset.label = line.label;
      const [lastX, lastY] = marks[marks.length - 1];
      if (line.state === "diverged") {
        const cross = `M${lastX - 4},${lastY - 4}l8,8m0,-8l-8,8`;
        drawn(group, "path", { class: "line", stroke: line.colour, d: cross });
      } else if (marks.length === 1) {
        drawn(group, "circle", { cx: lastX, cy: lastY, r: 4, fill: line.colour });
      }
    }
    picture.cursor = drawn(svg, "line", { class: "cursor", y1: MARGIN.top, y2: picture.bottom, visibility: "hidden" });
    if (cursor !== null) read(cursor);
  }

  function nearest(points, place) {
    return points.reduce((best, point) => (Math.abs(point.place - place) < Math.abs(best.place - place) ? point : best));
  }

  // What a method had come to by the cursor: of that epoch, or the last within that time. Past its
  // end it has nothing to be compared with.
  function reached(points) {
    const earlier = points.filter((point) => point.place <= cursor);
    if (axis.value !== "seconds") return earlier.find((point) => point.place === cursor);
    return earlier.length < points.length || points[points.length - 1].place === cursor ? earlier.pop() : undefined;
  }

  function read(place) {
    if (!picture) return;
    const all = picture.found.flatMap(({ points }) => points);
    cursor = nearest(all, place).place;
    const across = picture.x(cursor);
    for (const [key, value] of [["x1", across], ["x2", across], ["visibility", "visible"]]) {
      picture.cursor.setAttribute(key, value);
    }
    const rows = picture.found.map(({ line, points }) => ({
      line, point: reached(points), over: points[points.length - 1].place < cursor,
    }));
    const accuracy = metric.value.endsWith("accuracy");
    const there = rows.filter(({ point }) => point);
    there.sort((one, other) => (accuracy ? -1 : 1) * (one.point.mean - other.point.mean));
    readout.replaceChildren();
    made(readout, "strong", {}, axis.value === "seconds" ? `${shown(cursor)} s` : `epoch ${cursor}`);
    const told = (line, text) => {
      const row = made(readout, "div");
      swatch(row, line);
      made(row, "span", {}, line.label);
      made(row, "b", {}, text);
    };
    for (const { line, point } of there) {
      told(line, meanAndSpread(point, accuracy));
    }
    for (const { line } of rows.filter(({ over }) => over)) told(line, line.state);
    // Losses fall and accuracies rise: out of the way is above or below them.
    readout.style.top = accuracy ? "auto" : "8px";
    readout.style.bottom = accuracy ? `${MARGIN.bottom + 6}px` : "auto";
    readout.hidden = false;
    const left = across > picture.width / 2 ? across - readout.offsetWidth - 12 : across + 12;
    readout.style.left = `${Math.max(0, Math.min(left, picture.width - readout.offsetWidth))}px`;
  }

  function leave() {
    cursor = null;
    readout.hidden = true;
    if (picture) picture.cursor.setAttribute("visibility", "hidden");
  }

  function move(by) {
    if (!picture) return;
    const places = [...new Set(picture.found.flatMap(({ points }) => points.map((point) => point.place)))];
    places.sort((one, other) => one - other);
    const at = cursor === null ? (by > 0 ? -1 : places.length) : places.indexOf(cursor);
    read(places[Math.max(0, Math.min(places.length - 1, at + by))]);
  }

  function reset() {
    log.checked = LOGARITHMIC.has(metric.value);
    late.checked = metric.value.endsWith("accuracy");
    cursor = null;
    draw();
  }

  for (const line of chart.series) {
    const button = made(root.querySelector(".legend"), "button", { type: "button", "aria-pressed": "true" });
    swatch(button, line);
    made(button, "span", {}, line.label);
    button.addEventListener("click", () => {
      if (!hidden.delete(line)) hidden.add(line);
      button.setAttribute("aria-pressed", String(!hidden.has(line)));
      draw();
    });
  }
  metric.addEventListener("change", reset);
  axis.addEventListener("change", () => { cursor = null; draw(); });
  for (const box of [log, late]) box.addEventListener("change", draw);
  plot.addEventListener("pointermove", (event) => {
    if (picture) read(picture.x.inverse(event.clientX - svg.getBoundingClientRect().left));
  });
  // A finger lifted has not left: the read-out stays for the eye.
  plot.addEventListener("pointerleave", (event) => { if (event.pointerType !== "touch") leave(); });
  plot.addEventListener("blur", leave);
  plot.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") leave();
    if (!by) return;
    event.preventDefault();
    move(by);
  });
  reset();
  redrawn(svg, draw);
}
