// Replace each static chart by a live one; keep the static one if anything fails.
(() => {
  const NARROW = 480; // pixels: below it a legend beside itself gets two columns

  // A single or layered view fills the column; a composed one keeps its size and may scroll.
  function fit(spec, width) {
    if (!(spec.mark || spec.layer)) return spec;
    const config = { ...spec.config, legend: { ...spec.config?.legend, ...(width < NARROW && { columns: 2 }) } };
    return { ...spec, config, width: "container", autosize: { type: "fit-x", contains: "padding" } };
  }

  async function draw(figure) {
    const spec = JSON.parse(figure.querySelector('script[type="application/json"]').textContent);
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

  document.addEventListener("DOMContentLoaded", () => document.querySelectorAll("figure.lab-chart").forEach(draw));
})();
