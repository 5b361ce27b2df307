// Files of data/ that several tests read.
#pragma once

#include <string>

namespace cachalot::tools {

inline const std::string kTraces = CACHALOT_DATA_DIR "/traces/";
inline const std::string kLayers = CACHALOT_DATA_DIR "/snapshots/layers.pickle";

}  // namespace cachalot::tools
