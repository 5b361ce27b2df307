// Leak detectors and allocation tracks (leak_detector.h, allocation_track.h) of the process's allocator, for ctypes. Each is
// known by its number, from 1 on, until it is ended.
//
// Codes and `error` as in hooks.h; JSON as by cachalot_plug_json. A number that is none is the caller's mistake. Thread-safe.
#pragma once

#include <cstddef>

#include "pytorch/export.h"

extern "C" {

// The number of a new detector, which watches from now on.
CACHALOT_EXPORT long cachalot_plug_leaks_begin(std::size_t warm_up, std::size_t window, double min_confidence,
                                               char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_leaks_step(long detector, char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_leaks_end(long detector, char* error, std::size_t capacity);
// to_json(LeakReport) with at most `most` leaks and sites.
CACHALOT_EXPORT long cachalot_plug_leaks_json(long detector, std::size_t most, char* text, long capacity);

CACHALOT_EXPORT long cachalot_plug_track_begin(char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_track_stop(long track, char* error, std::size_t capacity);
CACHALOT_EXPORT int cachalot_plug_track_end(long track, char* error, std::size_t capacity);
CACHALOT_EXPORT long cachalot_plug_track_json(long track, std::size_t most, char* text, long capacity);
}
