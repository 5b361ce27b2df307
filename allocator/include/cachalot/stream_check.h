/// @file
/// The check that a stream belongs to a device.
#pragma once

#include "cachalot/require_cpp17.h"

#include "cachalot/device.h"

CACHALOT_BEGIN_API

/// Throws InvalidArgument, which names stream and device, if `stream` is a stream of another
/// device.
/// Requires: the stream exists. Cost: nanoseconds.
void require_stream_of_device(Device& device, Stream stream);

CACHALOT_END_API
