// Finds the GPUs, and the allocator policies on each, that a program fits into, from its run on one GPU.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "tools/base/report_tree.h"
#include "tools/replay/policies.h"
#include "tools/simulation/sized_memory.h"

namespace cachalot::tools {

struct Card {
  std::string key;    // as --gpu takes it, or the size that --memory gives
  std::string model;  // as --gpu takes it
  std::string product;
  std::string capability;  // "8.9"; cards of the same run the same kernels
  std::size_t memory_bytes = 0;
  std::size_t context_bytes = 0;  // of the CUDA context and libraries that the program uses: an estimate
  // The deviations of that and other estimates, downwards and upwards.
  std::size_t less_bytes = 0;
  std::size_t more_bytes = 0;

  // Returns the bytes that are left for the program. `least` is for estimates at their high ends, and `most` for those at
  // their low ends.
  std::size_t usable_bytes() const { return memory_bytes - std::min(memory_bytes, context_bytes); }
  std::size_t least_usable_bytes() const { return usable_bytes() - std::min(usable_bytes(), more_bytes); }
  std::size_t most_usable_bytes() const { return std::min(memory_bytes, usable_bytes() + less_bytes); }
  bool operator==(const Card&) const = default;
};

// Returns whether kernels for one of the architectures run on the card: binary code for its major version and no newer minor
// one, or PTX for no newer version. True if there are no architectures, or the card's version is not known.
bool has_kernels(const Card& card, const std::vector<std::string>& architectures);

// Return "t4", "gtx1660, rtx2060" or "gtx1650 to p4 (9 cards)", and their memory, of at least one card, the smallest first.
std::string text_of_cards(const std::vector<Card>& cards);
std::string memory_text_of(const std::vector<Card>& cards);

// Returns "PyTorch as installed here has no kernels for …", and "" for no cards.
std::string left_out_text(const std::vector<Card>& cards);

// The meaning of a question mark behind an answer.
inline constexpr const char* kUnsureText =
    "?: may change: the context and NCCL are estimates (--context SIZE sets the context)";

// A run's figures on one device of a process.
struct CardRun {
  int device = 0;
  Card card;                         // the device's model, with the memory that it had in this run
  std::optional<Policy::Heap> heap;  // the allocator's; unknown: another than PyTorch's
  // The architectures that PyTorch has kernels for, "sm_80" or "compute_90"; empty: not known.
  std::vector<std::string> architectures;
  std::size_t reserved_bytes = 0;  // the allocator's peak
  std::size_t other_bytes = 0;     // of the device, which the allocator does not own; the context apart
  bool ran_out = false;            // it ended where memory ran out, with that request as the trace's last
  std::optional<SizedMemory> sized = std::nullopt;  // a part of the trace that follows from the card
};

struct CardTable {
  struct Row {
    Card card;
    std::array<bool, kHeapCount> fits{};
    std::array<bool, kHeapCount> is_unsure{};  // the answer changes within the spread of the estimates
    // For CardRun::sized: what the part of the card leaves that the program takes. It fits where this is more than nothing.
    std::size_t sized_bytes = 0;
  };

  CardRun run;
  double part = 0;  // of its card, which a program that sizes itself takes; else 0
  // The next two are of all that the program needs, or, with CardRun::sized, of the rest.
  std::size_t live_bytes = 0;                        // the least that any card must have beside run.other_bytes
  std::array<std::size_t, kHeapCount> held_bytes{};  // on a device with enough memory
  bool is_exact = true;                              // the replay of the run holds what the run held
  std::vector<Row> rows;                             // the smallest card first
  std::vector<Card> left_out;                        // PyTorch has no kernels for these
};

// Returns the table for these cards, and the run's own, that have kernels. Where the run's heap was seen to fit, it fits.
CardTable make_card_table(Trace trace, const CardRun& run, std::vector<Card> cards);

// Adds a table for people, with a question mark behind answers that are unsure: equal rows are one, except those where
// policies differ and that of the run's card. `verbose`: a row for each card.
void add_to(Section& section, const CardTable& table, bool verbose);

Json json_of(const CardTable& table);

}  // namespace cachalot::tools
