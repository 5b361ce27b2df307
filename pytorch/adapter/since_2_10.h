// What torch 2.10 asks of an allocator beyond 2.9. A template: the classes for 2.10 and for later versions both have it.
#pragma once

#include "adapter/torch_allocator.h"

namespace cachalot::torch_adapter {

template <typename Base>
class Since2_10 : public Base {
 public:
  using Base::Base;

  std::vector<cuda_caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex device) override {
    std::vector<cuda_caching::StreamSegmentSize> sizes;
    for (const SegmentSnapshot& segment : as_torch([&] { return this->plug_.snapshot({}, false); }).segments) {
      if (segment.device != device || !segment.is_expandable) continue;
      sizes.emplace_back(segment.stream, segment.segment_type == PoolKind::small, segment.total_size);
    }
    return sizes;
  }
  void setNoSplit(DeviceIndex device, MempoolId_t pool) override {
    as_torch([&] { this->plug_.set_no_split(device, to_pool_id(pool)); });
  }
  void setUserMetadata(const std::string& metadata) override {
    Annotations::of_this_thread().set_user_metadata(metadata);
  }
  std::string getUserMetadata() override { return Annotations::of_this_thread().user_metadata(); }
};

}  // namespace cachalot::torch_adapter
