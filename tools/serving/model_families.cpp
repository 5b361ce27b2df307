#include "tools/serving/config_reader.h"

#include <algorithm>
#include <array>

#include "base/check.h"
#include "cachalot/errors.h"

namespace cachalot::tools {
namespace {

// From the models' published code (transformers 5.20).
constexpr std::array kFamilies{
    ModelFamily{.types = "llama mistral ministral mixtral granite granitemoe smollm3 internlm3 ernie4_5"},
    ModelFamily{.types = "qwen2 qwen2_moe qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text", .has_qkv_bias = true},
    ModelFamily{.types = "qwen3 qwen3_moe qwen3_vl_text qwen3_vl_moe_text", .qk_norms = 1},
    ModelFamily{.types = "minimax_m2 olmo2", .qk_norms = 2},
    ModelFamily{.types = "olmo3", .qk_norms = 2, .rotaries = 2},
    ModelFamily{.types = "exaone4", .windows = Windows::all_but_every_nth, .qk_norms = 1},
    ModelFamily{.types = "cohere", .norms = 1, .qk_norms = 2, .wants_qk_norms_told = true, .ties = true},
    ModelFamily{.types = "cohere2", .windows = Windows::all_but_every_nth, .norms = 1, .ties = true},
    ModelFamily{.types = "glm4_moe", .has_output_bias = false, .qk_norms = 1, .wants_qk_norms_told = true},
    ModelFamily{.types = "glm seed_oss", .has_output_bias = false},
    ModelFamily{.types = "glm4", .norms = 4, .has_output_bias = false},
    ModelFamily{.types = "gemma", .ties = true},
    ModelFamily{.types = "gemma2", .windows = Windows::every_second, .norms = 4, .ties = true},
    ModelFamily{.types = "gemma3_text",
                .windows = Windows::all_but_every_nth,
                .norms = 4,
                .qk_norms = 1,
                .ties = true,
                .rotaries = 2},
    ModelFamily{.types = "phi3"},
    ModelFamily{.types = "phi", .norms = 1, .gates = 0, .has_norm_bias = true, .has_all_biases = true},
    ModelFamily{.types = "gpt_neox", .gates = 0, .has_norm_bias = true, .has_all_biases = true},
    ModelFamily{.types = "falcon", .gates = 0, .has_norm_bias = true, .ties = true},
    ModelFamily{.types = "gpt_oss", .windows = Windows::every_second, .has_all_biases = true},
    ModelFamily{.types = "llama4_text", .windows = Windows::chunks, .has_shared_expert = true},
    ModelFamily{.types = "deepseek_v2 deepseek_v3 kimi_k2", .mixer = Mixer::latent},
    ModelFamily{.types = "mamba falcon_mamba", .mixer = Mixer::mamba1, .norms = 1, .ties = true},
    ModelFamily{.types = "mamba2", .mixer = Mixer::mamba2, .norms = 1},
    ModelFamily{.types = "jamba", .mixer = Mixer::mamba1},
    ModelFamily{.types = "bamba granitemoehybrid", .mixer = Mixer::mamba2},
    ModelFamily{.types = "nemotron_h", .mixer = Mixer::mamba2, .norms = 1, .gates = 0},
    ModelFamily{.types = "falcon_h1", .mixer = Mixer::attention_and_mamba2},
};

bool has_word(std::string_view words, std::string_view word) {
  for (std::size_t begin = 0; begin < words.size();) {
    const std::size_t end = std::min(words.find(' ', begin), words.size());
    if (words.substr(begin, end - begin) == word) return true;
    begin = end + 1;
  }
  return false;
}

std::string known_types() {
  std::string all;
  for (const ModelFamily& family : kFamilies) {
    if (!all.empty()) all += ", ";
    for (const char letter : family.types) all += letter == ' ' ? std::string(", ") : std::string(1, letter);
  }
  return all;
}

}  // namespace

const ModelFamily& find_family(std::string_view type, const std::string& path) {
  const auto found = std::ranges::find_if(kFamilies, [&](const auto& family) { return has_word(family.types, type); });
  CACHALOT_REQUIRE(found != kFamilies.end(), "{}: the model_type '{:.60}' is not known; known are {}", path, type,
                   known_types());
  return *found;
}

}  // namespace cachalot::tools
