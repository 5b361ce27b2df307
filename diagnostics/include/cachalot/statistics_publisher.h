/// @file
/// The publisher of an allocator's statistics for other processes.
#pragma once

#include "cachalot/require_cpp17.h"

#include <chrono>
#include <memory>
#include <string>

#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN_API

/// PublishOptions say where a statistics page lies and how often it is refreshed.
struct PublishOptions {
  /// An existing folder; "": the one that CACHALOT_PUBLISH_DIR names, or /dev/shm.
  std::string directory;
  /// The time between two refreshes without a reader, at least 1 ms.
  std::chrono::milliseconds interval{1000};
  /// The time between two refreshes while a reader reads the page, at least 1 ms. A refresh that
  /// took long is followed by a pause of 2,000 times its duration, so that publishing takes at most
  /// 0.05 % of a processor.
  std::chrono::milliseconds interval_with_reader{100};
};

/// A StatisticsPublisher publishes the statistics of an allocator on a statistics page
/// (statistics_page.h), which `cachalot top` and other programs read.
///
///     cachalot::StatisticsPublisher publisher(allocator);
///
/// Malloc and free do nothing for it: a thread of the publisher takes the figures, under the locks
/// that device_usage takes. The page is a file of mode 0600, which is removed by the destructor or
/// at the end of the process; a page of a process that was killed stays until `cachalot top`
/// removes it. The allocator must outlive the publisher.
///
/// In a forked child the publisher does nothing, and the page stays that of the parent.
///
/// Thread safety: every method may be called from any thread.
class StatisticsPublisher {
 public:
  /// Makes the page and starts the thread.
  /// Throws InvalidArgument if the page cannot be made, with the reason, and for an interval of
  /// less than 1 ms.
  explicit StatisticsPublisher(CachingAllocator& allocator, const PublishOptions& options = {});
  /// Ends the thread and removes the page.
  ~StatisticsPublisher();
  StatisticsPublisher(const StatisticsPublisher&) = delete;
  StatisticsPublisher& operator=(const StatisticsPublisher&) = delete;

  /// Returns the path of the page.
  const std::string& path() const;
  /// Refreshes the page now. Does nothing in a forked child.
  void refresh();

 private:
  class Implementation;
  std::unique_ptr<Implementation> implementation_;
};

CACHALOT_END_API
