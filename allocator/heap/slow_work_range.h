// A SlowWorkRange tells the observer of a SlowWork of its begin and its end.
#pragma once

#include <memory>
#include <utility>

#include "cachalot/slow_work.h"

CACHALOT_BEGIN

class SlowWorkRange {
 public:
  // `observer` may be null: nobody is told.
  SlowWorkRange(std::shared_ptr<SlowWorkObserver> observer, const SlowWork& work)
      : observer_(std::move(observer)), work_(work) {
    if (observer_) observer_->on_begin(work_);
  }
  ~SlowWorkRange() {
    if (observer_) observer_->on_end(work_);
  }
  SlowWorkRange(const SlowWorkRange&) = delete;
  SlowWorkRange& operator=(const SlowWorkRange&) = delete;

 private:
  const std::shared_ptr<SlowWorkObserver> observer_;
  const SlowWork work_;
};

CACHALOT_END
