// BinNodes are the leaves and tree nodes of all bins of one arena, which have the same size. They are kept for reuse:
// the steady state allocates nothing. Not thread-safe.
//
// Host memory that runs out here ends the program: a free that is half done cannot be taken back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "blocks/bin_leaf.h"

CACHALOT_BEGIN

class BinNodes {
 public:
  BinNodes() = default;
  BinNodes(const BinNodes&) = delete;
  BinNodes& operator=(const BinNodes&) = delete;

  BinLeaf& new_leaf();
  // `level` as in BinTreeNode.
  BinTreeNode& new_tree_node(std::uint32_t level);
  // `node`: one of either kind.
  void free_node(void* node);

  std::size_t metadata_bytes() const { return chunks_.size() * kChunkNodes * sizeof(Memory); }

 private:
  struct FreeNode {
    FreeNode* next;
  };
  struct alignas(kCacheLine) Memory {
    std::byte bytes[sizeof(BinLeaf)];
  };
  static constexpr std::size_t kChunkNodes = 16;

  void* allocate() noexcept;

  FreeNode* free_ = nullptr;
  std::vector<std::unique_ptr<Memory[]>> chunks_;  // of kChunkNodes
};

CACHALOT_END
