// A small trace whose free memory serves only some policies.
#pragma once

#include <string>

#include "base/bytes.h"
#include "tests/tools/temporary_file.h"
#include "tools/replay/trace_reader.h"

namespace cachalot::tools {

// 24 blocks of 8 MiB, of which PyTorch has two in a segment of 20 MiB, every other one freed, and then 96 MiB more.
inline Trace trace_with_holes() {
  std::string text;
  for (int i = 0; i < 24; ++i) text += "a," + std::to_string(i) + "," + std::to_string(8 * kMiB) + ",0\n";
  for (int i = 0; i < 24; i += 2) text += "f," + std::to_string(i) + "\n";
  for (int i = 24; i < 28; ++i) text += "a," + std::to_string(i) + "," + std::to_string(24 * kMiB) + ",0\n";
  return read_trace(TemporaryFile(text).path());
}

}  // namespace cachalot::tools
