#include "slots.h"

#include <algorithm>

CACHALOT_BEGIN

void PoolSlot::record_user(StreamKey user) {
  if (user == stream) return;
  if (others == nullptr) others = std::make_unique<std::vector<StreamKey>>();
  if (std::ranges::find(*others, user) == others->end()) others->push_back(user);
  attention |= kOtherStreams;
}

CACHALOT_END
