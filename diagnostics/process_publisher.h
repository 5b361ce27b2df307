// The publisher of the process's allocator, for libraries that have one (libcachalot.so, libcachalot_torch.so).
//
// Thread safety: any thread. A forked child has none until it starts its own.
#pragma once

#include <string>

#include "cachalot/caching_allocator.h"

CACHALOT_BEGIN

// Publishes the allocator's statistics; returns the path of the page. Where they are published already, does nothing else.
// Throws InvalidArgument as StatisticsPublisher does. The allocator must live until the process ends.
std::string publish_process(CachingAllocator& allocator, const std::string& directory);
// Ends that and removes the page. Does nothing where nothing is published.
void stop_publishing_process();
// The path of the page; "" where nothing is published.
std::string published_page();

// Returns the folder of pages: `given`, or if it is empty CACHALOT_PUBLISH_DIR, or /dev/shm.
std::string publish_directory(const std::string& given);
// Returns whether CACHALOT_PUBLISH asks for it. Throws BadEnvironment for a value other than 1, 0 and "".
bool is_publishing_asked_for();
// Publishes what CACHALOT_PUBLISH has asked for. Where that is not possible, a line on standard error says why.
void publish_as_asked(CachingAllocator& allocator);

CACHALOT_END
