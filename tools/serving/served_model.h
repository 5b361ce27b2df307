// A ServedModel is a language model as its config.json describes it: every tensor of the weights, and what each layer keeps
// of a request while it is served.
#pragma once

#include <cstdint>
#include <optional>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

#include "tools/base/report_tree.h"

namespace cachalot::tools {

// The ways in which tensor parallelism divides a tensor. With more GPUs than key-value heads, several GPUs have the same head.
enum class Split : std::uint8_t { replicated, sharded, by_kv_head };

// The kinds of weights that quantization treats differently.
enum class Role : std::uint8_t { other, linear, expert };

struct Tensor {
  std::string name;  // "model.layers.3.self_attn.q_proj"
  std::uint64_t elements = 0;
  Split split = Split::sharded;
  Role role = Role::other;
  std::optional<std::uint64_t> bytes{};  // as a file of weights has it
};

// A layer's memory of a request: keys and values of tokens, or a state that does not grow, or both.
struct CacheLayer {
  std::uint64_t token_elements = 0;  // of one head, or of the latent vector
  std::int64_t heads = 0;            // 0: no keys and values; of a latent vector 1
  bool is_latent = false;            // keys and values are one vector
  std::int64_t window = 0;           // the tokens that are kept; 0: all
  std::uint64_t conv_elements = 0;   // of the state of a convolution
  std::uint64_t state_elements = 0;  // of the state of a state space model
};

// The storage of weights. Bits are those of one weight with its share of scales and zero points.
struct Quantization {
  std::string method;  // "fp8"; "": none
  double bits = 0;
  bool experts_alone = false;
  std::vector<std::regex> ignored{};  // modules that are not quantized

  bool covers(const Tensor& tensor) const;
};

struct ServedModel {
  std::string type;                 // "llama"
  std::string path;                 // of the file
  std::int64_t heads = 0;           // of queries
  std::int64_t kv_heads = 0;        // the most that a layer has
  std::int64_t hidden = 0;          // the width of a token between layers
  std::int64_t inner = 0;           // the width of a token within a feed-forward layer
  std::int64_t active_experts = 0;  // of a token in a layer; 0: there are none
  std::int64_t expert_inner = 0;    // the width of a token within an expert
  std::int64_t vocabulary = 0;
  std::int64_t max_positions = 0;  // the longest context; 0: not told
  std::uint64_t dtype_bytes = 2;   // of weights that are not quantized, and of activations
  std::uint64_t state_bytes = 2;   // of a number in the state of a state space model
  std::vector<Tensor> tensors{};   // by arithmetic
  std::vector<Tensor> stored{};    // of the files of weights beside the config; empty without them
  std::vector<CacheLayer> layers{};
  Quantization quantization{};

  std::uint64_t parameters() const;
};

// Reads a config.json, or the one in a folder. Where the folder has files of weights as well (*.safetensors), their headers
// say what the weights are. Throws InvalidArgument, which names the file and a missing key or an unknown model_type.
ServedModel read_served_model(const std::string& path);

// Returns the storage that `config`, the quantization_config in the file at `path`, tells. Throws InvalidArgument, which names the file.
Quantization quantization_of(const Json& config, const std::string& path);
// Returns the same for the value of --quantization, such as "fp8"; "none" leaves weights as they are.
Quantization quantization_named(std::string_view name);

// Returns the tensors that the headers of the folder's *.safetensors tell; empty where there are none.
std::vector<Tensor> safetensors_in(const std::string& folder);

}  // namespace cachalot::tools
