#include "cachalot/relocatable_heap.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/arena_compaction.h"
#include "kernels/relocatable_blocks.h"

CACHALOT_BEGIN

// --- Relocatable -----------------------------------------------------------------------------------------------------

Relocatable::Relocatable() = default;
Relocatable::Relocatable(Relocatable&& other) noexcept = default;

Relocatable::Relocatable(std::shared_ptr<RelocatableBlocks> owner, std::unique_ptr<RelocatableBlock> block)
    : owner_(std::move(owner)), block_(std::move(block)) {
  owner_->add(*block_);
}

Relocatable& Relocatable::operator=(Relocatable&& other) noexcept {
  if (this == &other) return *this;
  if (block_ != nullptr) owner_->remove(*block_);
  block_ = std::move(other.block_);
  owner_ = std::move(other.owner_);
  return *this;
}

Relocatable::~Relocatable() {
  if (block_ != nullptr) owner_->remove(*block_);
}

const RelocatableBlock& Relocatable::held(const char* call) const {
  CACHALOT_REQUIRE(block_ != nullptr, "{} of a handle that is empty: it was released already, or moved from", call);
  return *block_;
}

void* Relocatable::data() const { return block_ == nullptr ? nullptr : block_->memory.get(); }
std::size_t Relocatable::bytes() const { return held("bytes").bytes; }
Stream Relocatable::stream() const { return held("stream").stream; }
void Relocatable::record_stream(Stream other) {
  void* const memory = held("record_stream").memory.get();
  owner_->allocator().record_stream(memory, other);
}

void Relocatable::release() {
  held("release");
  *this = Relocatable();
}

// --- RelocatableHeap -------------------------------------------------------------------------------------------------

RelocatableHeap::RelocatableHeap(CachingAllocator& allocator, int device, std::shared_ptr<Kernels> mover)
    : blocks_(std::make_shared<RelocatableBlocks>(allocator, device)),
      mover_(mover != nullptr ? std::move(mover) : kernels_for(allocator.device(device))) {
  allocator.device(device);
}

Relocatable RelocatableHeap::allocate(std::size_t bytes, Stream stream) {
  CACHALOT_REQUIRE(bytes > 0, "a relocatable allocation of {} bytes: it has at least one", bytes);
  auto block = std::make_unique<RelocatableBlock>();
  block->memory = allocate_owned(blocks_->allocator(), bytes, blocks_->device(), stream);
  block->bytes = bytes;
  block->stream = stream;
  return {blocks_, std::move(block)};
}

CompactReport RelocatableHeap::compact() {
  CachingAllocator& allocator = blocks_->allocator();
  const int device = blocks_->device();
  const std::size_t reserved = allocator.memory_reserved(device);
  allocator.empty_cache(device);  // what is whole already is no place to move to
  const Snapshot snapshot = allocator.snapshot({}, /*include_traces=*/false);
  std::map<std::pair<Stream, PoolKind>, std::vector<const SegmentSnapshot*>> arenas;
  for (const SegmentSnapshot& segment : snapshot.segments) {
    if (segment.device != device || !segment.segment_pool_id.is_default()) continue;
    arenas[{segment.is_expandable ? nullptr : segment.stream, segment.segment_type}].push_back(&segment);
  }
  CompactReport report;
  for (const auto& [arena, segments] : arenas) ArenaCompaction(*blocks_, segments).run(*mover_, report);
  allocator.empty_cache(device);
  const std::size_t left = allocator.memory_reserved(device);
  report.bytes_freed = reserved - std::min(reserved, left);
  return report;
}

CACHALOT_END
