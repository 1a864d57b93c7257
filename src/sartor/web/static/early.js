// Before anything is painted: the theme that was chosen last, so that a dark page never flashes white.
try {
  const theme = localStorage.getItem("sartor-theme");
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
} catch {
  /* a browser that keeps nothing */
}
