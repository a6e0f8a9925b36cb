// Other tabs of this browser. Without HTTP/2 a browser has six connections to a server, and the stream of a tab keeps one of
// them: hidden tabs leave it to another tab, which rings for them.
import type { OpenEvents } from "./attention";

// A tab states that it has received an event, or that it has closed its stream.
type Message = Rank & { events: OpenEvents | null };

interface Rank {
  id: number;
  // Whether the browser lets it sound, and whether it is shown.
  canRing: boolean;
  isShown: boolean;
}

export class OtherTabs {
  private readonly channel = new BroadcastChannel(`yamamori ${location.pathname}`);
  private readonly id = Math.random();
  // The tab whose events were received last.
  private follows = 0;

  constructor(
    // Another tab that rings at least as well has received this.
    private readonly onEvents: (events: OpenEvents) => void,
    private readonly onEnd: () => void,
  ) {
    this.channel.addEventListener("message", ({ data }: MessageEvent<Message>) => this.onMessage(data));
  }

  received(events: OpenEvents): void {
    this.channel.postMessage({ ...this.rank(), events });
  }

  ended(): void {
    this.channel.postMessage({ ...this.rank(), events: null });
  }

  private rank(): Rank {
    // A browser that does not know this holds no sound back.
    const canRing = (navigator.userActivation as UserActivation | undefined)?.hasBeenActive ?? true;
    return { id: this.id, canRing, isShown: !document.hidden };
  }

  private onMessage(other: Message): void {
    if (other.events === null) {
      if (other.id === this.follows) this.onEnd();
      return;
    }
    if (document.hidden && isBefore(other, this.rank())) {
      this.follows = other.id;
      this.onEvents(other.events);
    }
  }
}

function isBefore(one: Rank, other: Rank): boolean {
  if (one.canRing !== other.canRing) return one.canRing;
  return one.isShown === other.isShown ? one.id < other.id : one.isShown;
}
