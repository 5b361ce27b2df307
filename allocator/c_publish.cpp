#include "cachalot/c_publish.h"

#include "c_api_boundary.h"
#include "live/process_publisher.h"

using namespace cachalot;  // NOLINT(google-*): what follows are functions of C

int cachalot_publish(const char* directory) {
  return guarded([&] { publish_process(c_allocator(), directory == nullptr ? "" : directory); });
}

int cachalot_stop_publishing(void) {
  return guarded([] { stop_publishing_process(); });
}
