#include "simulator/device/hazard_checker.h"

#include <algorithm>
#include <iterator>

CACHALOT_BEGIN

void add_use(std::vector<Use>& uses, const Use& use) {
  for (Use& known : uses) {
    if (known.stream != use.stream || known.mapping != use.mapping) continue;
    known.launch = std::max(known.launch, use.launch);
    return;
  }
  uses.push_back(use);
}

std::size_t HazardChecker::number_of(Stream stream) {
  const auto [at, is_new] = numbers_.try_emplace(stream, names_.size());
  if (is_new) {
    names_.push_back(stream);
    clocks_.emplace_back();
  }
  return at->second;
}

void HazardChecker::host_saw_everything() {
  for (std::size_t stream = 0; stream < clocks_.size(); ++stream) host_.set(stream, clocks_[stream][stream]);
}

void HazardChecker::joined(Stream stream, Stream other) {
  const std::size_t number = number_of(stream);
  const VectorClock& before = stream_clock(number_of(other));  // last: a new number moves the clocks
  stream_clock(number).join(before);
}

void HazardChecker::destroyed(Stream stream, bool was_blocking) {
  if (was_blocking) destroyed_blocking_.join(stream_clock(number_of(stream)));
  numbers_.erase(stream);
}

void HazardChecker::launched(Stream stream) {
  const std::size_t number = number_of(stream);
  clocks_[number].set(number, clocks_[number][number] + 1);
}

void HazardChecker::used(Stream stream, const MemoryPiece& piece) {
  const std::size_t number = number_of(stream);
  const Use use{number, clocks_[number][number], piece.mapping};
  uses_.for_each_filled(piece.physical, piece.bytes,
                        [&](const UseMap::Range&, UsedBytes& part) { add_use(part.uses, use); });
}

void HazardChecker::handed_out(Address address, std::size_t bytes, Stream stream, Pieces pieces) {
  check_handout(address, bytes, stream, pieces);
  for (const MemoryPiece& piece : pieces) {
    uses_.for_each_filled(piece.physical, piece.bytes, [&](const UseMap::Range&, UsedBytes& part) {
      part.owner = address;
      std::erase_if(part.uses, [&](const Use& use) { return host_has_seen(use); });
    });
    uses_.merge_equals(piece.physical, piece.bytes);
  }
  handouts_.emplace(address, Handout{bytes, stream});
}

void HazardChecker::check_handout(Address address, std::size_t bytes, Stream stream, Pieces pieces) {
  const auto what = [&] { return describe(address, {bytes, stream}); };
  if (pieces.empty()) throw HazardError(formatted("{} is not accessible memory", what()));
  const std::size_t number = number_of(stream);
  for (const MemoryPiece& piece : pieces) {
    uses_.for_each(piece.physical, piece.bytes, [&](const UseMap::Range& range, const UsedBytes& part) {
      if (part.owner != 0) {
        throw HazardError(
            formatted("{} overlaps {}, which is still held", what(), describe(part.owner, handouts_.at(part.owner))));
      }
      for (const Use& use : part.uses) {
        if (comes_before(use, number)) continue;
        throw HazardError(formatted("{}, but {} used [{:#x}, +{}) of it and is not ordered before that stream", what(),
                                    describe(use), piece.address + (range.first - piece.physical),
                                    range.end - range.first));
      }
    });
  }
}

std::size_t HazardChecker::handout_bytes(Address address) const {
  const auto at = handouts_.find(address);
  if (at == handouts_.end()) throw HazardError(formatted("{:#x} is given back, but was not handed out", address));
  return at->second.bytes;
}

void HazardChecker::given_back(Address address, Pieces pieces) {
  for (const MemoryPiece& piece : pieces) {
    uses_.for_each(piece.physical, piece.bytes, [](const UseMap::Range&, UsedBytes& part) { part.owner = 0; });
  }
  handouts_.erase(address);
}

void HazardChecker::check_unmap(Pieces mappings) {
  for (const MemoryPiece& mapping : mappings) {
    check_no_handout("unmap", mapping.address, mapping.bytes);
    uses_.for_each(mapping.physical, mapping.bytes, [&](const UseMap::Range& range, const UsedBytes& part) {
      for (const Use& use : part.uses) {
        if (use.mapping != mapping.mapping || host_has_seen(use)) continue;
        throw HazardError(
            formatted("unmap of [{:#x}, +{}), but {} used [{:#x}, +{}) of it and the host has not seen it finish",
                      mapping.address, mapping.bytes, describe(use), mapping.address + (range.first - mapping.physical),
                      range.end - range.first));
      }
    });
  }
}

void HazardChecker::check_no_handout(const char* call, Address address, std::size_t bytes) const {
  auto at = handouts_.lower_bound(address);
  if (at != handouts_.begin()) {
    const auto before = std::prev(at);
    if (before->first + before->second.bytes > address) at = before;
  }
  if (at == handouts_.end() || at->first >= address + bytes) return;
  throw HazardError(
      formatted("{} of [{:#x}, +{}), but {} and is still held", call, address, bytes, describe(at->first, at->second)));
}

std::string HazardChecker::describe(const Use& use) const {
  return formatted("launch #{} of stream {}", use.launch, static_cast<const void*>(names_[use.stream]));
}

std::string HazardChecker::describe(Address address, const Handout& handout) const {
  return formatted("[{:#x}, +{}) was handed out for stream {}", address, handout.bytes,
                   static_cast<const void*>(handout.stream));
}

CACHALOT_END
