// The publishing of the process's statistics (statistics_publisher.h), for the Python package, by ctypes.
//
// Codes and `error` as in hooks.h. Thread-safe. To be called without Python's lock (GIL).
#pragma once

#include <cstddef>

#include "pytorch/export.h"

extern "C" {

// `directory` is the folder of the page, or null for the usual one.
CACHALOT_EXPORT int cachalot_plug_publish(const char* directory, char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_stop_publishing(char* error, std::size_t capacity);
// {"path": of the page, or "" if nothing is published}, as by cachalot_plug_json.
CACHALOT_EXPORT long cachalot_plug_published_json(char* text, long capacity);
}
