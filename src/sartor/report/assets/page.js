(function () {
  "use strict";
  var specs = JSON.parse(document.getElementById("figures").textContent);
  var options = {
    actions: false,
    renderer: "svg",
    ast: true,
    mode: "vega-lite",
    tooltip: { disableDefaultStyle: true },
    loader: { http: { credentials: "omit" } }
  };
  Object.keys(specs).forEach(function (id) {
    var host = document.getElementById(id);
    window.vegaEmbed(host, specs[id], options).then(function (drawn) {
      return drawn.view.resize().runAsync(); // the legend's columns follow from the width
    }).catch(function (error) {
      host.textContent = "This figure could not be drawn here (" + error.message + "). Its numbers are in the tables.";
    });
  });
  window.addEventListener("beforeprint", function () {
    document.querySelectorAll("details").forEach(function (each) { each.open = each.dataset.print === "open" || each.open; });
  });
})();
