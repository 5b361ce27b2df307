// PYTORCH_CUDA_ALLOC_CONF of a recorded program, as options for a replay.
#pragma once

#include <string>
#include <string_view>

#include "cachalot/options.h"
#include "tools/replay/policies.h"

namespace cachalot::tools {

// Returns the settings of the text that decide where PyTorch's default allocator puts a block, without those named `without`: an
// option text for heap:segments. Settings that cannot be read are left out.
std::string segment_config(std::string_view settings, std::string_view without = "");

// Returns what cachalot's page heap takes of the settings, as it does when the program enables it: an option text.
std::string page_config(std::string_view settings);

// Returns the settings of the default allocator as options.
Options segment_options(std::string_view settings);

// Returns whether the program ran with expandable segments.
bool is_expandable(std::string_view settings);

// Returns the policy that the program ran with, as far as the settings decide where a block lies.
Policy policy_of_settings(std::string_view settings);

}  // namespace cachalot::tools
