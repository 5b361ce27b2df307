// The parts of a document while it is read: values, and the lists and dicts that are not yet taken.
//
// What was taken out of a list or dict does not stay: the container closes and has a meaning instead (a frame, a call
// stack), by which a pickle may still name it. So a reader holds what the file has begun and not ended, and four bytes for
// each number of a pickle's memo.
//
// A container is named by a slot and a generation, so that a name of a closed one finds nothing. Nothing here recurses.
#pragma once

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/history/history.h"
#include "tools/history/memory_budget.h"
#include "tools/history/tables.h"

namespace cachalot::tools {

// A value, to be passed by value.
class Part {
 public:
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    natural,
    real,
    container,
    text,
    bytes,     // Python's; without them
    frame,     // from a dict
    stack,     // from a list of frames
    pool,      // from a pair of numbers
    metadata,  // from a dict or list of the user's: its JSON is a text
    gone,      // taken, without a meaning by itself
  };
  static constexpr std::uint32_t kNoMemo = std::numeric_limits<std::uint32_t>::max();

  Part() = default;
  static Part of_boolean(bool value) { return {Kind::boolean, value ? 1u : 0u}; }
  static Part of_integer(std::int64_t value) { return {Kind::integer, static_cast<std::uint64_t>(value)}; }
  static Part of_natural(std::uint64_t value) { return {Kind::natural, value}; }
  static Part of_real(double value) { return {Kind::real, std::bit_cast<std::uint64_t>(value)}; }
  static Part of_id(Kind kind, std::uint32_t id) { return {kind, id}; }

  Kind kind() const { return static_cast<Kind>(head_ & 0xFF); }
  const char* kind_name() const;
  // Requires: text, metadata (both TextId), frame, stack, pool.
  std::uint32_t id() const { return static_cast<std::uint32_t>(bits_); }
  bool is_text() const { return kind() == Kind::text; }

  // nullopt for a value of another kind.
  std::optional<bool> boolean() const;
  std::optional<std::uint64_t> natural() const;
  std::optional<std::int64_t> integer() const;
  double real() const { return std::bit_cast<double>(bits_); }

 private:
  friend class Parts;
  Part(Kind kind, std::uint64_t bits, std::uint32_t generation = 0)
      : head_(std::uint64_t{generation} << 32 | static_cast<std::uint8_t>(kind)), bits_(bits) {}
  std::uint32_t generation() const { return static_cast<std::uint32_t>(head_ >> 32); }
  std::uint32_t slot() const { return static_cast<std::uint32_t>(bits_); }
  std::uint32_t memo() const { return static_cast<std::uint32_t>(bits_ >> 32); }

  // Whole words: a processor waits where a word is read of which a part has just been written.
  std::uint64_t head_ = static_cast<std::uint8_t>(Kind::none);  // the kind, and of a container above it its generation
  std::uint64_t bits_ = 0;  // of a container: its slot, and above it its number in the memo
};

struct Container {
  // The kind of its items, known from the first one on; `list` and `dict` hold them in `parts`, the others elsewhere, by
  // `store`.
  enum class Kind : std::uint8_t { closed, list, dict, frames, events, segments, blocks, stages };

  Kind kind = Kind::closed;
  std::uint32_t generation = 0;
  std::uint32_t memo = Part::kNoMemo;
  std::uint32_t store = 0;
  std::vector<Part> parts;  // of a dict: keys and values in turn
};

class Parts {
 public:
  explicit Parts(MemoryBudget& budget) : budget_(budget) {}

  Part open(Container::Kind kind);
  // Returns the container, which is valid until the next open(); null if the part is not a container, or one that closed.
  Container* find(Part part) {
    if (part.kind() != Part::Kind::container) return nullptr;
    Container& container = containers_[part.slot()];
    return container.generation == part.generation() ? &container : nullptr;
  }
  // Returns the current meaning of the part.
  Part resolved(Part part) {
    if (part.kind() != Part::Kind::container || find(part) != nullptr) return part;
    return meaning_of_closed(part);
  }
  void push(Container& container, Part part) {
    if (container.parts.size() == container.parts.capacity()) grow(container.parts);
    container.parts.push_back(part);
  }
  // The container is `meaning` from now on. Items that were not taken are gone.
  void close(Part container, Part meaning);
  // Takes what the container holds into `parts`, whose storage it gets.
  void take(Container& container, std::vector<Part>& parts);
  void close_all(const std::vector<Part>& parts);

  // The memo of a pickle. `part` may become another name of the same.
  void memoize(std::uint64_t number, Part& part);
  void memoize(Part& part) { memoize(memo_count_, part); }
  std::optional<Part> recall(std::uint64_t number) {
    if (number >= memo_count_ || pages_[number / kPage] == nullptr) return std::nullopt;
    const std::uint32_t entry = memo_at(static_cast<std::uint32_t>(number));
    const auto kind = static_cast<Part::Kind>(entry >> kPackedBits);
    if (kind > Part::Kind::container && entry >> kPackedBits != kAlias) return Part(kind, entry & kMostPacked);
    return recall_other(static_cast<std::uint32_t>(number));
  }

  // Frees all memory. No part may be used any more.
  void clear();

 private:
  // An entry of the memo: a Part::Kind in the highest bits, or kAlias, and below it an id, a container's slot, the entry
  // that this one is another name of, or, for what does not fit, an index in values_.
  static constexpr std::size_t kPage = std::size_t{1} << 16;
  static constexpr std::uint32_t kPackedBits = 28;
  static constexpr std::uint32_t kMostPacked = (std::uint32_t{1} << kPackedBits) - 1;
  static constexpr std::uint32_t kAlias = 15;
  static constexpr Part::Kind kInValues = Part::Kind::boolean;

  std::uint32_t packed(Part part);
  std::uint32_t& memo_at(std::uint32_t number) { return (*pages_[number / kPage])[number % kPage]; }
  std::optional<Part> recall_other(std::uint32_t number);
  Part meaning_of_closed(Part part);
  void grow(std::vector<Part>& parts);

  MemoryBudget& budget_;
  std::vector<Container> containers_;
  std::vector<std::uint32_t> closed_;  // slots
  std::vector<Part> closing_;
  using Page = std::vector<std::uint32_t>;
  std::vector<std::unique_ptr<Page>> pages_;  // of the memo; null where it is empty
  std::uint32_t memo_count_ = 0;
  std::vector<Part> values_;  // of the memo, that do not fit into it
};

// The fields of a snapshot's dicts, checked. The readers of snapshots build on it.

// The keys and values of snapshots that have a meaning. A word is the same number in each history's texts: its place here.
inline constexpr auto kWords = std::to_array<std::string_view>({
    "",
    // Actions, in the order of HistoryEvent::Action.
    "alloc",
    "free_requested",
    "free_completed",
    "segment_alloc",
    "segment_free",
    "segment_map",
    "segment_unmap",
    "snapshot",
    "oom",
    "annotate",
    // Keys of an entry of a history.
    "action",
    "addr",
    "device_free",
    "size",
    "stream",
    "time_us",
    "frames",
    "forward_frames",
    "compile_context",
    "user_metadata",
    "internal_metadata",
    "pool_id",
    "N/A",
    // Keys of a segment.
    "device",
    "address",
    "total_size",
    "segment_type",
    "segment_pool_id",
    "is_expandable",
    "asleep_size",
    "blocks",
    "small",
    "large",
    // Keys of a block.
    "requested_size",
    "owner",
    "owner_kind",
    "state",
    "active_allocated",
    "active_pending_free",
    "active_awaiting_free",
    "inactive",
    "allocated",
    "active",
    // Keys of a frame.
    "filename",
    "name",
    "line",
    "fx_node_name",
    // Keys of an annotation.
    "stage",
    "START",
    "END",
    // Keys of a snapshot.
    "segments",
    "unknown_actions",  // of JSON that convert wrote
    "device_traces",
    "host_segments",
    "host_traces",
    "external_annotations",
    "allocator_settings",
    "PYTORCH_CUDA_ALLOC_CONF",
    "cachalot",
    // Keys of cachalot's own part.
    "facts",
    "total_bytes",
    "free_bytes",
    "limit_bytes",
    "nccl_bytes",
    "context_bytes",
    "process_bytes",
    "processes",
    "pid",
    "bytes",
    "failing",
    "who",
    "segment_bytes",
    "has_pages",
    "is_refused",
    "has_nccl",
    "knows_owners",
    "tags",
    "libraries",
});
enum class Word : TextId {};

// "size"_word; one that is not in the list does not compile.
consteval Word operator""_word(const char* text, std::size_t length) {
  std::size_t number = 0;
  while (kWords.at(number) != std::string_view{text, length}) ++number;
  return static_cast<Word>(number);
}

inline std::string_view text_of(Word word) { return kWords[static_cast<std::size_t>(word)]; }

using Pairs = std::vector<Part>;  // keys and values in turn

class PartFields {
 public:
  static constexpr std::size_t kLongestText = 4096;  // of a kept text; longer ones are cut

  explicit PartFields(std::size_t memory_limit);

  MemoryBudget& budget() { return budget_; }
  Parts& parts() { return parts_; }
  // Each throws InvalidArgument for what breaks a rule of snapshots.
  Part text(std::string_view text, std::size_t longest = kLongestText);

 protected:
  static constexpr std::uint64_t kMostDevices = 1 << 16;
  struct Where {  // the part that is read, for messages
    static constexpr std::size_t kWhole = std::numeric_limits<std::size_t>::max();
    const char* what = "the snapshot";
    std::size_t index = kWhole;
  };

  template <typename... Args>
  CACHALOT_FAST_PATH void require(bool holds, fmt::format_string<Args...> rule, Args&&... args) const {
    if (!holds) [[unlikely]]
      refuse_by(rule, std::forward<Args>(args)...);
  }
  template <typename... Args>
  [[noreturn, gnu::noinline]] void refuse_by(fmt::format_string<Args...> rule, Args&&... args) const {
    refuse(fmt::format(rule, std::forward<Args>(args)...));
  }

  std::uint64_t natural(Part value, const char* key, std::uint64_t most) const;
  std::uint64_t bytes(Part value, const char* key) const;
  Address address(Part value, const char* key) const;
  std::uint16_t stream(Part value);
  std::uint16_t pool(Part value);
  TextId text_id(Part value, const char* key) const;
  // Returns the value of the key, or null if the key is not there.
  static const Part* find(const Pairs& pairs, Word word);
  static bool has(const Container& dict, Word word) { return find(dict.parts, word) != nullptr; }

  // Takes the part that cachalot adds when it writes a snapshot out of memory.
  void take_facts(Part value);

  MemoryBudget budget_;
  Parts parts_;
  History history_;
  Where where_;

 private:
  [[noreturn]] void refuse(std::string_view why) const;
  DeviceFacts facts_of(const Pairs& pairs);
  // Calls `take` with each dict of the list `key`.
  template <typename Take>
  void for_each_dict(Part value, const char* key, Take take);
  std::string owned_text(const Pairs& pairs, Word word);
  void add_processes(Part value, DeviceFacts& facts);
  DeviceFacts::Failing failing_of(Part value);
};

}  // namespace cachalot::tools
