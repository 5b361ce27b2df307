#include "live/process_publisher.h"

#include <cstdlib>
#include <mutex>
#include <new>
#include <string_view>

#include "base/check.h"
#include "base/process.h"

CACHALOT_BEGIN

namespace {

class ProcessPublisher final : public ForkAware {
 public:
  // Never destroyed: the page is removed when the process ends.
  static ProcessPublisher& instance() {
    static ProcessPublisher& publisher = *new ProcessPublisher;
    return publisher;
  }

  std::string publish(CachingAllocator& allocator, const std::string& directory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (publisher_ == nullptr) {
      PublishOptions options;
      options.directory = directory;
      publisher_ = std::make_unique<StatisticsPublisher>(allocator, options);
    }
    return publisher_->path();
  }
  void stop() {
    const std::lock_guard<std::mutex> lock(mutex_);
    publisher_ = nullptr;
  }
  std::string path() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return publisher_ == nullptr ? "" : publisher_->path();
  }

 private:
  // The parent's publisher stays where it is: a thread that is not here may have been using it.
  void on_fork() noexcept override {
    new (&mutex_) std::mutex;
    static_cast<void>(publisher_.release());
    adopt();
  }

  std::mutex mutex_;  // held while the publisher starts or ends
  std::unique_ptr<StatisticsPublisher> publisher_;
};

}  // namespace

std::string publish_process(CachingAllocator& allocator, const std::string& directory) {
  return ProcessPublisher::instance().publish(allocator, directory);
}

void stop_publishing_process() { ProcessPublisher::instance().stop(); }

std::string published_page() { return ProcessPublisher::instance().path(); }

bool is_publishing_asked_for() {
  const char* const text = std::getenv("CACHALOT_PUBLISH");
  const std::string_view value = text == nullptr ? "" : text;
  CACHALOT_REQUIRE(value.empty() || value == "0" || value == "1",
                   "'{:.60}' is not 1, to publish statistics for cachalot top, nor 0", value);
  return value == "1";
}

void publish_as_asked(CachingAllocator& allocator) {
  try {
    publish_process(allocator, "");
  } catch (const std::exception& error) {
    print_error("cachalot: CACHALOT_PUBLISH=1 has no effect: {}\n", error.what());
  }
}

CACHALOT_END
