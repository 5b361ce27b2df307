// Which content of device memory is what a GPU would have computed. Bytes are known: copied or filled by the program, or
// computed from such; or guessed: computed from bytes that are unknown; or unknown, as nothing has written them here. Unknown
// bytes read as zeros. A guess for a large range may be one byte for all of it.
// process_mutex guards it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace cachalot::simulator {

class KnownContent {
 public:
  enum class Kind : unsigned char { unknown, guessed, known };

  // Ranges are of offsets in ContentStore's file, which has their content.
  void note(std::uint64_t first, std::size_t bytes, Kind kind) { put(first, bytes, {0, kind, kNoByte}); }
  // Each byte of the range is guessed to be `byte`.
  void note_uniform(std::uint64_t first, std::size_t bytes, unsigned char byte) {
    put(first, bytes, {0, Kind::guessed, byte});
  }
  // The range is unknown from now on.
  void forget(std::uint64_t first, std::size_t bytes) { carve(first, first + bytes); }
  // Whether all of the range is known.
  bool is_known(std::uint64_t first, std::size_t bytes) const;
  // Whether all of the range is unknown, so that it has no content.
  bool is_unknown(std::uint64_t first, std::size_t bytes) const;

  // Which kinds there are in the range: bit 0 unknown, 1 guessed, 2 known.
  unsigned kinds_in(std::uint64_t first, std::size_t bytes) const;
  // Sets the kind of each byte of the range.
  void kinds(std::uint64_t first, std::size_t bytes, Kind* kinds) const;

  // Calls visit(first, bytes, byte) for each part of the range that is known or guessed; `byte` is kNoByte if the content is in
  // the file.
  static constexpr int kNoByte = -1;
  template <typename Visit>
  void for_each_part(std::uint64_t first, std::size_t bytes, Visit&& visit) const {
    const std::uint64_t end = first + bytes;
    for (auto run = run_at_or_after(first); run != runs_.end() && run->first < end; ++run) {
      const std::uint64_t from = run->first < first ? first : run->first;
      const std::uint64_t to = run->second.end < end ? run->second.end : end;
      visit(from, static_cast<std::size_t>(to - from), run->second.byte);
    }
  }

 private:
  struct Run {
    std::uint64_t end;
    Kind kind;
    int byte;
  };
  using Runs = std::map<std::uint64_t, Run>;  // by their beginnings; they do not overlap

  Runs::const_iterator run_at_or_after(std::uint64_t first) const;
  void put(std::uint64_t first, std::size_t bytes, Run run);
  void carve(std::uint64_t first, std::uint64_t end);
  void merge_with_next(Runs::iterator run);

  Runs runs_;
};

}  // namespace cachalot::simulator
