// Streamlit's list of pages has sections between the list and its items, which is no valid list for a screen reader.
// Its lists become plain groups of links, its section titles headings, and the current page is named as such.
const mend = () => {
  for (const e of document.querySelectorAll('[data-testid="stSidebarNav"] ul, [data-testid="stSidebarNav"] li')) {
    if (e.getAttribute('role') !== 'none') e.setAttribute('role', 'none');
  }
  for (const e of document.querySelectorAll('[data-testid="stNavSectionHeader"]')) {
    if (e.getAttribute('role') !== 'heading') { e.setAttribute('role', 'heading'); e.setAttribute('aria-level', '2'); }
  }
  const here = location.pathname.replace(/\/$/, '');
  for (const e of document.querySelectorAll('a[data-testid="stSidebarNavLink"]')) {
    const current = new URL(e.href).pathname.replace(/\/$/, '') === here ? 'page' : null;
    if (e.getAttribute('aria-current') !== current) {
      if (current) e.setAttribute('aria-current', current); else e.removeAttribute('aria-current');
    }
  }
};
if (!window.kvitalsNavigation) {
  let due = false;
  window.kvitalsNavigation = new MutationObserver(() => {
    if (due) return;
    due = true;
    requestAnimationFrame(() => { due = false; mend(); });
  });
  window.kvitalsNavigation.observe(document.body, {childList: true, subtree: true});
  // One link is one step of Back. Streamlit writes the query and the path of a new page in two steps, in either order;
  // both would be entries, and the first names a view that nobody saw.
  const push = history.pushState.bind(history);
  let query = 0, moved = 0;
  history.pushState = (state, title, url) => {
    clearTimeout(query);
    if (new URL(url, location.href).pathname !== location.pathname) { moved = Date.now(); push(state, title, url); }
    else if (Date.now() - moved < 2000) history.replaceState(state, title, url);
    else query = setTimeout(() => push(state, title, url), 300);
  };
  // Streamlit merges requests that come during a run: a chart that reports its state, or a page that draws itself again,
  // takes the page of a link or a Back just before it. Where the page at rest is not the wanted one for a second, it is
  // asked for again, a link three times at most.
  let elsewhere = 0, asked = null;
  addEventListener('click', e => {
    const link = e.target.closest?.('a[data-testid="stSidebarNavLink"]');
    if (!link && e.target.closest?.('a, button')) asked = null;  // something else is wanted now
    if (!link || e.button || e.ctrlKey || e.metaKey || e.shiftKey || e.altKey) return;
    const path = new URL(link.href).pathname;
    asked = {path, page: path.split('/').pop(), again: asked?.path === path ? asked.again + 1 : 0};
  }, true);
  addEventListener('popstate', () => { asked = null; });
  setInterval(() => {
    const shown = document.querySelector('[data-shown-page]')?.dataset.shownPage;
    const atRest = document.querySelector('[data-testid="stApp"]')?.dataset.testScriptState === 'notRunning';
    const links = [...document.querySelectorAll('a[data-testid="stSidebarNavLink"]')];
    const to = path => links.find(e => new URL(e.href).pathname === path);
    if (asked && (asked.page === shown || asked.again > 2)) asked = null;
    const wanted = asked ? asked.page : to(location.pathname) ? location.pathname.split('/').pop() : shown;
    elsewhere = atRest && shown !== undefined && wanted !== shown ? elsewhere + 1 : 0;
    if (elsewhere < 4) return;
    elsewhere = 0;
    if (asked) to(asked.path)?.click(); else dispatchEvent(new PopStateEvent('popstate', {state: history.state}));
  }, 250);
}
mend();
