// Loads and actions of a page, in order: on a slow link a second one begins before the first has ended.

// What could not be read is read again after this time.
export const RETRY_MS = 5000;

// Runs one at a time. A call meanwhile begins one more afterwards, and ends with it.
export function oneAtATime(run: () => Promise<void>): () => Promise<void> {
  let isStale = false;
  let running: Promise<void> | null = null;
  const runAll = async () => {
    while (isStale) {
      isStale = false;
      await run();
    }
  };
  return () => {
    isStale = true;
    running ??= runAll().finally(() => (running = null));
    return running;
  };
}

// A second click would send the same again.
export async function disableWhile(box: HTMLElement, run: () => Promise<unknown>): Promise<void> {
  const all = box instanceof HTMLButtonElement ? [box] : [...box.querySelectorAll("button")];
  const buttons = all.filter((each) => !each.disabled);
  const focused = document.activeElement;
  for (const each of buttons) each.disabled = true;
  try {
    await run();
  } finally {
    for (const each of buttons) each.disabled = false;
    // A button that is disabled loses the focus.
    if (focused instanceof HTMLElement && document.activeElement === document.body) focused.focus({ preventScroll: true });
  }
}
