function landscape(root, files) {
  const run = root.querySelector(".run");
  const slider = root.querySelector(".step");
  const svg = root.querySelector(".plot svg");

  files.forEach(({ title }, index) => made(run, "option", { value: index }, title));
  run.parentElement.hidden = files.length === 1;

  function draw() {
    const { searches } = files[Number(run.value)];
    const search = searches[Number(slider.value)];
    const where = `step ${search.step}, epoch ${search.epoch}`;
    root.querySelector(".where").textContent = where;
    slider.setAttribute("aria-valuetext", where);
    root.querySelector(".facts").textContent = facts(search);
    if (!svg.getBoundingClientRect().width) return;

    const heights = [...search.losses, ...search.trial_losses, ...search.vertices, search.loss].filter(Number.isFinite);
    const [low, high] = [Math.min(...heights), Math.max(...heights)];
    const margin = (high - low) * 0.12 || Math.abs(high) * 0.1 || 1;
    const across = [...search.grid, ...search.trial_steps, search.step_size];
    const { x, y, group, bottom } = frame(svg, {
      x: [0, Math.max(...across)], y: [low - margin, high + margin], log: false, name: "step size α",
    });

    const upright = (name, at) => {
      if (at !== null) drawn(group, "line", { class: `line ${name}`, x1: x(at), x2: x(at), y1: MARGIN.top, y2: bottom });
    };
    upright("ceiling", search.ceiling);
    upright("taken", search.step_size);
    const height = (loss) => (loss === null ? NaN : y(loss));
    const curve = (name, losses) => {
      const points = search.grid.map((step, index) => [x(step), height(losses[index])]);
      drawn(group, "path", { class: `line ${name}`, d: path(points) });
    };
    curve("loss", search.losses);
    for (const name of ["two_point", "least_squares"]) {
      if (search[name] === null) continue;
      const [a, b, c] = search[name];
      curve(name, search.grid.map((step) => (a * step + b) * step + c));
    }
    search.trial_steps.forEach((step, index) => {
      if (search.trial_losses[index] === null) return;
      drawn(group, "circle", { class: "trial", cx: x(step), cy: y(search.trial_losses[index]), r: 5 });
    });
  }

  function facts(search) {
    const verdict = search.accepted ? "accepted" : "not accepted";
    const capped = search.capped ? ", at the ceiling" : "";
    const trials = search.trial_steps.length;
    return `Loss ${shown(search.loss)}, slope ${shown(search.slope)}; ${trials} trial${trials === 1 ? "" : "s"}; `
      + `step size ${shown(search.step_size)}, ${verdict}${capped}.`;
  }

  function choose() {
    slider.max = files[Number(run.value)].searches.length - 1;
    slider.value = 0;
    draw();
  }

  run.addEventListener("change", choose);
  slider.addEventListener("input", draw);
  choose();
  redrawn(svg, draw);
}
