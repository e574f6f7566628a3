// The responses that clients can ask for by number, and the groups they can ask for by name, for as long as
// the rollout holds them. It sends nothing.

import type { GroupId } from "../../core/base/ids.ts";
import type { Group, Request } from "../../core/request/buffer.ts";
import type { GroupTracks, Track } from "./topic.ts";

export class Tracks {
  /** By the request's number. */
  readonly #tracks = new Map<number, Track>();
  /** The same by the request's index, which is quicker to find, and which a later request may have again. */
  readonly #byIndex: (Track | undefined)[] = [];
  readonly #groups = new Map<GroupId, GroupTracks>();
  /** By the name that a client gave; the newest of that name. */
  readonly #named = new Map<string, GroupTracks>();
  readonly #firstAttempt: number;

  /** `firstAttempt` differs between servers, so that a client sees that it resumes at another one. */
  constructor(firstAttempt: number) {
    this.#firstAttempt = firstAttempt;
  }

  joined(request: Request): Track {
    const group = this.#groups.get(request.group.groupId) ?? this.#opened(request.group);
    const track: Track = {
      request,
      group,
      attempt: this.#firstAttempt,
      flags: 0,
      from: 0,
      progressFlags: 0,
      topic: null,
    };
    group.tracks.push(track);
    this.#tracks.set(request.spec.requestId, track);
    this.#byIndex[request.index] = track;
    return track;
  }

  restarted(request: Request): void {
    const track = this.of(request);
    if (track !== null) track.attempt = (track.attempt + 1) >>> 0;
  }

  retired(group: Group): GroupTracks | null {
    const tracks = this.#groups.get(group.groupId);
    if (tracks === undefined) return null;
    tracks.isRetired = true;
    this.#groups.delete(group.groupId);
    const name = nameOf(group);
    if (this.#named.get(name) === tracks) this.#named.delete(name);
    for (const { request } of tracks.tracks) {
      this.#tracks.delete(request.spec.requestId);
      this.#byIndex[request.index] = undefined;
    }
    return tracks;
  }

  get size(): number {
    return this.#tracks.size;
  }

  all(): Iterable<Track> {
    return this.#tracks.values();
  }

  of(request: Request): Track | null {
    const track = this.#byIndex[request.index];
    return track?.request === request ? track : null;
  }

  track(request: number): Track | null {
    return this.#tracks.get(request) ?? null;
  }

  /** By the server's name for it, or by a client's. */
  group(name: string): GroupTracks | null {
    return this.#groups.get(name as GroupId) ?? this.#named.get(name) ?? null;
  }

  #opened(group: Group): GroupTracks {
    const tracks: GroupTracks = { group, tracks: [], isRetired: false, topic: null };
    this.#groups.set(group.groupId, tracks);
    this.#named.set(nameOf(group), tracks);
    return tracks;
  }
}

/** JoinableGroups writes a client's name behind a number of its own: `g7:name`. */
function nameOf(group: Group): string {
  const { groupId } = group;
  return groupId.slice(groupId.indexOf(":") + 1);
}
