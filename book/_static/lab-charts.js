// Replace each static chart by a live one; keep the static one if anything fails.
(() => {
  const NARROW = 480; // pixels

  // A single or layered view fills the column; a composed one stacks its views where the page is narrow.
  function fit(spec, width) {
    if (spec.mark || spec.layer) {
      spec.width = "container";
      spec.autosize = { type: "fit-x", contains: "padding" };
    }
    if (width < NARROW) {
      spec.config.legend.columns = 2;
      spec.columns = 1;
      if (spec.hconcat) {
        spec.vconcat = spec.hconcat;
        delete spec.hconcat;
      }
    }
    return spec;
  }

  async function draw(figure) {
    const text = figure.querySelector('script[type="application/json"]').textContent;
    const spec = JSON.parse(text);
    figure.dataset.picks = text.includes('"bind":"legend"');
    const live = document.createElement("div");
    live.className = "lab-chart-live";
    figure.querySelector(".lab-chart-static").after(live);
    try {
      await window.vegaEmbed(live, fit(spec, figure.clientWidth), { actions: false, renderer: "svg" });
      figure.dataset.live = "true";
    } catch (error) {
      live.remove();
      figure.dataset.live = "false";
      console.error("chart stays static:", error);
    }
  }

  // Paper is light.
  const root = document.documentElement;
  let theme;
  window.addEventListener("beforeprint", () => {
    theme = root.dataset.theme;
    root.dataset.theme = "light";
  });
  window.addEventListener("afterprint", () => {
    root.dataset.theme = theme;
  });

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("figure.lab-chart").forEach(draw));
})();
