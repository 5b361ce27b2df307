#include "device/simulated_content.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>

CACHALOT_BEGIN

namespace {

bool is_zero(const std::byte* bytes, std::size_t count) {
  return bytes[0] == std::byte{} && std::memcmp(bytes, bytes + 1, count - 1) == 0;
}

}  // namespace

template <typename Visit>
void SimulatedContent::for_each_chunk(std::uint64_t physical, std::size_t bytes, Visit&& visit) {
  for (std::size_t done = 0; done < bytes;) {
    const std::size_t place = (physical + done) % kChunkBytes;
    const std::size_t part = std::min(bytes - done, kChunkBytes - place);
    visit((physical + done) / kChunkBytes, place, done, part);
    done += part;
  }
}

void SimulatedContent::write(std::uint64_t physical, const std::byte* from, std::size_t bytes) {
  for_each_chunk(physical, bytes, [&](std::uint64_t number, std::size_t place, std::size_t done, std::size_t part) {
    const bool zeros = is_zero(from + done, part);
    if (zeros && !chunks_.contains(number)) return;
    Chunk& chunk = chunks_[number];
    std::memcpy(chunk.data() + place, from + done, part);
    if (zeros && is_zero(chunk.data(), kChunkBytes)) chunks_.erase(number);
  });
}

void SimulatedContent::fill(std::uint64_t physical, std::byte value, std::size_t bytes) {
  Chunk filled;
  filled.fill(value);
  for_each_chunk(physical, bytes, [&](std::uint64_t, std::size_t, std::size_t done, std::size_t part) {
    write(physical + done, filled.data(), part);
  });
}

void SimulatedContent::read(std::byte* to, std::uint64_t physical, std::size_t bytes) const {
  for_each_chunk(physical, bytes, [&](std::uint64_t number, std::size_t place, std::size_t done, std::size_t part) {
    const auto chunk = chunks_.find(number);
    if (chunk != chunks_.end()) {
      std::memcpy(to + done, chunk->second.data() + place, part);
    } else if (!is_zero(to + done, part)) {
      std::memset(to + done, 0, part);
    }
  });
}

void SimulatedContent::forget(std::uint64_t physical, std::size_t bytes) {
  chunks_.erase(chunks_.lower_bound(physical / kChunkBytes), chunks_.lower_bound((physical + bytes) / kChunkBytes));
}

void* SimulatedHostMemory::allocate(std::size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  allocated_.emplace(memory, Mapping(memory, Unmap{bytes}));
  return memory;
}

std::size_t SimulatedHostMemory::bytes(const void* memory) const {
  const auto taken = allocated_.find(memory);
  return taken == allocated_.end() ? 0 : taken->second.get_deleter().bytes;
}

bool SimulatedHostMemory::holds(const void* memory) const {
  const auto above = allocated_.upper_bound(memory);
  if (above == allocated_.begin()) return false;
  const auto& [first, mapping] = *std::prev(above);
  return static_cast<const std::byte*>(memory) < static_cast<const std::byte*>(first) + mapping.get_deleter().bytes;
}

void SimulatedHostMemory::Unmap::operator()(void* memory) const { munmap(memory, bytes); }

bool SimulatedHostMemory::free(void* memory) { return allocated_.erase(memory) == 1; }

CACHALOT_END
