// Runs one function for many numbers, several concurrently.
#pragma once

#include <cstddef>
#include <functional>

namespace cachalot::tools {

// Returns the number of threads that the machine runs at the same time, at least 1.
int processors();

// Calls job(0) to job(count - 1), each once, on up to `threads` threads, and returns when all are done. After a call
// throws, no new one begins; when those under way are done, the exception of the lowest number is thrown.
void run_in_parallel(std::size_t count, int threads, const std::function<void(std::size_t)>& job);

}  // namespace cachalot::tools
