#include "guard/guard_log.h"
#include "base/format.h"

#include <cstdio>
#include <exception>
#include <iterator>
#include <utility>

CACHALOT_BEGIN

void GuardLog::set_handler(GuardHandler handler) {
  const Lock lock(mutex_);
  handler_ = std::move(handler);
}

void GuardLog::add(const Reports& reports) {
  if (reports.empty()) return;
  {
    const Lock lock(mutex_);
    untaken_.insert(untaken_.end(), reports.begin(), reports.end());
    while (untaken_.size() > kKept) untaken_.pop_front();
  }
  count_ += reports.size();
  tell(reports);
}

void GuardLog::tell(const Reports& reports) {
  if (Batch* const batch = Batch::innermost_of(*this)) {
    batch->reports_.insert(batch->reports_.end(), reports.begin(), reports.end());
    return;
  }
  GuardHandler handler;
  {
    const Lock lock(mutex_);
    handler = handler_;
  }
  std::exception_ptr first;
  for (const GuardReport& report : reports) {
    try {
      if (handler) {
        handler(report);
      } else {
        print_error("cachalot guard: {}\n", to_string(report));
      }
    } catch (...) {
      if (first == nullptr) first = std::current_exception();
    }
  }
  if (first != nullptr) std::rethrow_exception(first);
}

GuardLog::Reports GuardLog::take() {
  const Lock lock(mutex_);
  Reports taken(std::make_move_iterator(untaken_.begin()), std::make_move_iterator(untaken_.end()));
  untaken_.clear();
  return taken;
}

// --- batches --------------------------------------------------------------------------------------------------------

thread_local GuardLog::Batch* GuardLog::Batch::innermost_ = nullptr;

GuardLog::Batch::Batch(GuardLog& log) noexcept : log_(log), outer_(innermost_) { innermost_ = this; }

GuardLog::Batch::~Batch() {
  try {
    tell();
  } catch (...) {
  }
}

void GuardLog::Batch::tell() {
  if (!is_open_) return;
  is_open_ = false;
  innermost_ = outer_;
  log_.tell(reports_);
}

GuardLog::Batch* GuardLog::Batch::innermost_of(const GuardLog& log) {
  Batch* batch = innermost_;
  while (batch != nullptr && &batch->log_ != &log) batch = batch->outer_;
  return batch;
}

CACHALOT_END
