#include "tools/serving/served_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "base/bytes.h"
#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/base/input_file.h"
#include "tools/serving/config_reader.h"

namespace cachalot::tools {
namespace {

// Throws InvalidArgument where the elements are more than those of any layer.
std::uint64_t product(std::int64_t one, std::int64_t other) {
  constexpr double kMost = 1ULL << 44;
  CACHALOT_REQUIRE(static_cast<double>(one) * static_cast<double>(other) <= kMost,
                   "--model: a tensor of {} x {} elements is too large for a model", one, other);
  return static_cast<std::uint64_t>(one) * static_cast<std::uint64_t>(other);
}

// Builds the tensors and the caches of a model, layer by layer.
class Builder {
 public:
  Builder(const ConfigReader& config, const ModelFamily& family, ServedModel& model)
      : config_(config), family_(family), model_(model) {
    model.hidden = config.number({"hidden_size", "n_embd", "d_model"});
    model.vocabulary = config.number({"vocab_size"});
    CACHALOT_REQUIRE(model.vocabulary > 0, "{}: 'vocab_size' is 0, and must be 1 or more", config.path());
    model.max_positions = config.number({"max_position_embeddings", "n_positions", "max_seq_len"}, 0);
    pattern_ = config.text({"hybrid_override_pattern"}, "");
    if (pattern_.empty()) pattern_ = pattern_of_types(config.texts({"layer_types", "layers_block_type"}));
    const ConfigReader::Names layers = {"num_hidden_layers", "n_layer", "num_layers"};
    layers_ = pattern_.empty() ? config.number(layers) : config.number(layers, as_signed(pattern_.size()));
    CACHALOT_REQUIRE(layers_ > 0 && layers_ <= 10000 && model.hidden > 0, "{}: {} layers of width {} are no model",
                     config.path(), layers_, model.hidden);
    CACHALOT_REQUIRE(pattern_.empty() || as_signed(pattern_.size()) >= layers_,
                     "{}: 'num_hidden_layers' is {}, and the types of {} layers are told", config.path(), layers_,
                     pattern_.size());
    read_attention();
    read_feed_forward();
    read_state();
  }

  void build() {
    const bool ties = config_.flag({"tie_word_embeddings"}, family_.ties);
    add("model.embed_tokens", product(model_.vocabulary, model_.hidden), Split::sharded);
    if (!ties) add("lm_head", product(model_.vocabulary, model_.hidden), Split::sharded);
    for (std::int64_t layer = 0; layer < layers_; ++layer) build_layer(layer);
    add("model.norm", product(model_.hidden, family_.has_norm_bias ? 2 : 1), Split::replicated);
    // Sines and cosines of all positions, which engines keep.
    const bool has_attention = std::ranges::any_of(model_.layers, [](const auto& layer) { return layer.heads > 0; });
    if (has_attention && family_.types != "nemotron_h")
      add("rotary", product(model_.max_positions, family_.rotaries * rotary_dim_), Split::replicated);
  }

 private:
  // A letter for each layer: '*' is attention, 's' attention to a window, 'M' a state; '-' has neither, 'E' experts alone.
  static std::string pattern_of_types(const std::vector<std::string>& types) {
    std::string pattern;
    for (const std::string& type : types) {
      const bool is_window = type.starts_with("sliding") || type.starts_with("chunked");
      const bool is_state = type == "linear_attention" || type.find("mamba") != std::string::npos;
      pattern += is_window ? 's' : is_state ? 'M' : type == "mlp" ? '-' : type == "moe" ? 'E' : '*';
    }
    return pattern;
  }

  void read_attention() {
    if (family_.mixer == Mixer::mamba1 && family_.types != "jamba") return;
    if (family_.mixer == Mixer::mamba2 && family_.types == "mamba2") return;
    model_.heads = config_.number({"num_attention_heads", "n_head"});
    CACHALOT_REQUIRE(model_.heads > 0, "{}: 'num_attention_heads' is 0", config_.path());
    model_.kv_heads = config_.positive({"num_key_value_heads", "num_kv_heads"}, model_.heads);
    const bool is_old_falcon = family_.types == "falcon" && !config_.flag({"new_decoder_architecture"}, false);
    if (is_old_falcon) model_.kv_heads = config_.flag({"multi_query"}, true) ? 1 : model_.heads;
    CACHALOT_REQUIRE(model_.heads % model_.kv_heads == 0,
                     "{}: 'num_attention_heads' is {}, which is no multiple of the {} key-value heads", config_.path(),
                     model_.heads, model_.kv_heads);
    head_dim_ = config_.positive({"head_dim", "attention_head_dim"}, model_.hidden / model_.heads);
    rotary_dim_ = family_.mixer == Mixer::latent ? config_.number({"qk_rope_head_dim"}) : head_dim_;
    window_ = config_.number({"sliding_window", "attention_chunk_size"}, 0);
    if (!config_.flag({"use_sliding_window"}, true)) window_ = 0;
  }

  void read_feed_forward() {
    const std::int64_t by_default = family_.types == "falcon" || family_.types == "mamba2" ? 4 * model_.hidden : -1;
    experts_ = config_.number({"num_local_experts", "num_experts", "n_routed_experts"}, 0);
    if (model_.heads == 0) return;
    const ConfigReader::Names dense = {"intermediate_size", "ffn_hidden_size", "n_inner"};
    inner_ = config_.number({"intermediate_size_mlp"}, 0);
    if (inner_ == 0) inner_ = by_default > 0 ? config_.number(dense, by_default) : config_.number(dense);
    expert_inner_ = config_.number({"moe_intermediate_size", "intermediate_size"}, inner_);
    const std::int64_t shared = config_.number({"n_shared_experts"}, family_.has_shared_expert ? 1 : 0);
    shared_inner_ = config_.number(
        {"shared_expert_intermediate_size", "moe_shared_expert_intermediate_size", "shared_intermediate_size"},
        shared * expert_inner_);
    if (experts_ <= 1) experts_ = 0;
    CACHALOT_REQUIRE(inner_ > 0 || experts_ > 0, "{}: 'intermediate_size' is 0, and must be 1 or more", config_.path());
    model_.inner = experts_ > 0 && !has_dense_layers() ? shared_inner_ : inner_;
    if (experts_ > 0) model_.active_experts = config_.number({"num_experts_per_tok", "moe_topk"}, 1);
    model_.expert_inner = expert_inner_;
  }

  bool has_dense_layers() const {
    for (std::int64_t layer = 0; layer < layers_; ++layer) {
      if (!has_experts(layer)) return true;
    }
    return false;
  }

  void read_state() {
    if (family_.mixer == Mixer::attention || family_.mixer == Mixer::latent) return;
    const std::int64_t expand = config_.number({"mamba_expand", "expand"}, 2);
    state_ = config_.number({"mamba_d_state", "ssm_state_size", "state_size"});
    kernel_ = config_.number({"mamba_d_conv", "conv_kernel", "d_conv"}, 4);
    CACHALOT_REQUIRE(kernel_ > 0, "{}: the kernel of the convolution is 0", config_.path());
    state_width_ = expand * model_.hidden;
    if (family_.mixer == Mixer::mamba1) {
      rank_ = config_.number({"mamba_dt_rank", "time_step_rank"}, (model_.hidden + 15) / 16);
      return;
    }
    state_heads_ = config_.number({"mamba_n_heads", "mamba_num_heads", "num_heads"});
    state_width_ = config_.number({"mamba_d_ssm"},
                                  state_heads_ * config_.number({"mamba_d_head", "mamba_head_dim", "head_dim"}, 64));
    groups_ = config_.number({"mamba_n_groups", "n_groups"}, 1);
  }

  char kind(std::int64_t layer) const {
    const auto at = static_cast<std::size_t>(layer);
    if (!pattern_.empty()) return at < pattern_.size() ? pattern_[at] : '*';
    if (config_.find({"attn_layer_indices"}) != nullptr)
      return config_.list_has({"attn_layer_indices"}, layer) ? '*' : 'M';
    if (family_.types == "jamba") {
      const std::int64_t period = std::max<std::int64_t>(1, config_.number({"attn_layer_period"}));
      return layer % period == config_.number({"attn_layer_offset"}) ? '*' : 'M';
    }
    if (model_.heads == 0) return 'M';
    return window_ > 0 && has_window(layer) ? 's' : '*';
  }

  bool has_window(std::int64_t layer) const {
    switch (family_.windows) {
      case Windows::every_second:
        return layer % 2 == 0;
      case Windows::all_but_every_nth:
        return (layer + 1) % window_period() != 0;
      case Windows::chunks:
        return (layer + 1) % 4 != 0;
      case Windows::all:
      case Windows::none:
        break;
    }
    return window_ < model_.max_positions && layer >= config_.number({"max_window_layers"}, 0);
  }

  // "LLLG" is a period of 4 layers.
  std::int64_t window_period() const {
    const std::string letters = config_.text({"sliding_window_pattern"}, "");
    if (!letters.empty()) return as_signed(letters.size());
    return std::max<std::int64_t>(1, config_.number({"sliding_window_pattern"}, family_.types == "cohere2" ? 4 : 6));
  }

  bool has_experts(std::int64_t layer) const {
    if (experts_ == 0) return false;
    if (!pattern_.empty() && family_.types == "nemotron_h") return kind(layer) == 'E';
    if (config_.list_has({"mlp_only_layers"}, layer)) return false;
    if (config_.find({"moe_layers"}) != nullptr) return config_.list_has({"moe_layers"}, layer);
    const std::int64_t offset = config_.number({"expert_layer_offset"}, -1);
    const std::int64_t period = std::max<std::int64_t>(
        1, config_.number({"decoder_sparse_step", "interleave_moe_layer_step", "expert_layer_period"}, 1));
    if (offset >= 0) return layer % period == offset;
    return layer >= config_.number({"first_k_dense_replace"}, 0) && (layer + 1) % period == 0;
  }

  void add(const std::string& name, std::uint64_t elements, Split split, Role role = Role::other) {
    if (elements > 0) model_.tensors.push_back({.name = name, .elements = elements, .split = split, .role = role});
  }
  void add_matrix(const std::string& name, std::int64_t rows, std::int64_t columns, Split split,
                  bool has_bias = false) {
    add(name, product(rows, columns), split, Role::linear);
    if (has_bias) add(name + ".bias", static_cast<std::uint64_t>(columns), split);
  }

  void build_layer(std::int64_t layer) {
    const std::string name = fmt::format("model.layers.{}", layer);
    CacheLayer cache;
    const char letter = kind(layer);
    if (letter == '*' || letter == 's') build_attention(name + ".self_attn", letter == 's', cache);
    if (letter == 'M' || family_.mixer == Mixer::attention_and_mamba2) build_state(name + ".mamba", cache);
    const bool is_mixer_alone = family_.types == "nemotron_h" && letter != '-' && letter != 'E';
    if (model_.heads > 0 && !is_mixer_alone) build_feed_forward(name, layer);
    const std::int64_t norms =
        family_.types == "falcon" && config_.flag({"parallel_attn"}, true) ? falcon_norms() : family_.norms;
    add(name + ".norms", product(model_.hidden, norms * (family_.has_norm_bias ? 2 : 1)), Split::replicated);
    model_.layers.push_back(cache);
  }

  int falcon_norms() const {
    const bool is_new = config_.flag({"new_decoder_architecture"}, false);
    return static_cast<int>(config_.number({"num_ln_in_parallel_attn"}, is_new ? 2 : 1));
  }

  void build_attention(const std::string& name, bool has_window, CacheLayer& cache) {
    if (family_.mixer == Mixer::latent) return build_latent_attention(name, cache);
    const std::int64_t width = model_.heads * head_dim_;
    const std::int64_t kv_width = model_.kv_heads * head_dim_;
    const bool has_bias = config_.flag({"attention_bias", "bias"}, family_.has_all_biases);
    const bool qkv_bias = has_bias || family_.has_qkv_bias;
    add_matrix(name + ".q_proj", model_.hidden, width, Split::sharded, qkv_bias);
    add_matrix(name + ".k_proj", model_.hidden, kv_width, Split::by_kv_head, qkv_bias);
    add_matrix(name + ".v_proj", model_.hidden, kv_width, Split::by_kv_head, qkv_bias);
    add_matrix(name + ".o_proj", width, model_.hidden, Split::sharded, has_bias && family_.has_output_bias);
    const int qk_norms = config_.flag({"use_qk_norm"}, !family_.wants_qk_norms_told) ? family_.qk_norms : 0;
    if (qk_norms == 1) add(name + ".qk_norms", product(head_dim_, 2), Split::replicated);
    if (qk_norms == 2) add(name + ".qk_norms", product(width + kv_width, 1), Split::replicated);
    cache.token_elements = product(head_dim_, 2);
    cache.heads = model_.kv_heads;
    cache.window = has_window ? window_ : 0;
  }

  void build_latent_attention(const std::string& name, CacheLayer& cache) {
    const std::int64_t rank = config_.number({"kv_lora_rank"});
    const std::int64_t rope = config_.number({"qk_rope_head_dim"});
    const std::int64_t nope = config_.number({"qk_nope_head_dim"});
    const std::int64_t value = config_.number({"v_head_dim"});
    const std::int64_t query_width = model_.heads * (nope + rope);
    const std::int64_t query_rank = config_.number({"q_lora_rank"}, 0);
    if (query_rank > 0) add_matrix(name + ".q_a_proj", model_.hidden, query_rank, Split::replicated);
    add_matrix(name + ".q_b_proj", query_rank > 0 ? query_rank : model_.hidden, query_width, Split::sharded);
    add_matrix(name + ".kv_a_proj_with_mqa", model_.hidden, rank + rope, Split::replicated);
    add_matrix(name + ".kv_b_proj", rank, model_.heads * (nope + value), Split::sharded);
    add_matrix(name + ".o_proj", model_.heads * value, model_.hidden, Split::sharded);
    add(name + ".norms", product(rank + query_rank, 1), Split::replicated);
    cache.token_elements = product(rank + rope, 1);
    cache.heads = 1;
    cache.is_latent = true;
    model_.kv_heads = 1;
  }

  void build_state(const std::string& name, CacheLayer& cache) {
    const std::int64_t width = state_width_;
    if (family_.mixer == Mixer::mamba1) {
      add_matrix(name + ".in_proj", model_.hidden, 2 * width, Split::sharded);
      add(name + ".conv1d", product(width, kernel_ + 1), Split::sharded);
      add_matrix(name + ".x_proj", width, rank_ + 2 * state_, Split::sharded);
      add_matrix(name + ".dt_proj", rank_, width, Split::sharded, true);
      add(name + ".state", product(width, state_ + 1), Split::sharded);
      cache.conv_elements = product(width, kernel_ - 1);
      cache.state_elements = product(width, state_);
    } else {
      const std::int64_t conv_width = width + 2 * groups_ * state_;
      add_matrix(name + ".in_proj", model_.hidden, width + conv_width + state_heads_, Split::sharded);
      add(name + ".conv1d", product(conv_width, kernel_ + 1), Split::sharded);
      add(name + ".state", product(state_heads_, 3) + product(width, 1), Split::sharded);
      cache.conv_elements = product(conv_width, kernel_ - 1);
      cache.state_elements = product(width, state_);
    }
    add_matrix(name + ".out_proj", width, model_.hidden, Split::sharded);
  }

  void build_feed_forward(const std::string& name, std::int64_t layer) {
    if (!has_experts(layer)) return build_dense(name + ".mlp", inner_);
    const std::int64_t matrices = family_.gates + 2;
    add(name + ".mlp.gate", product(model_.hidden, experts_), Split::replicated);
    add(name + ".mlp.experts", product(experts_ * matrices, as_signed(product(model_.hidden, expert_inner_))),
        Split::sharded, Role::expert);
    if (family_.has_all_biases)
      add(name + ".mlp.experts.bias", product(experts_, expert_inner_ * (matrices - 1) + model_.hidden),
          Split::sharded);
    if (shared_inner_ > 0) build_dense(name + ".mlp.shared_experts", shared_inner_);
  }

  void build_dense(const std::string& name, std::int64_t inner) {
    const bool has_bias = config_.flag({"mlp_bias", "bias"}, family_.has_all_biases);
    const std::string names[] = {".up_proj", ".gate_proj"};
    for (int i = 0; i <= family_.gates; ++i)
      add_matrix(name + names[i], model_.hidden, inner, Split::sharded, has_bias);
    add_matrix(name + ".down_proj", inner, model_.hidden, Split::sharded, has_bias);
  }

  const ConfigReader& config_;
  const ModelFamily& family_;
  ServedModel& model_;
  std::string pattern_;
  std::int64_t layers_ = 0;
  std::int64_t head_dim_ = 0;
  std::int64_t rotary_dim_ = 0;
  std::int64_t window_ = 0;
  std::int64_t inner_ = 0;
  std::int64_t experts_ = 0;
  std::int64_t expert_inner_ = 0;
  std::int64_t shared_inner_ = 0;
  std::int64_t state_ = 0;
  std::int64_t kernel_ = 0;
  std::int64_t state_width_ = 0;
  std::int64_t state_heads_ = 0;
  std::int64_t groups_ = 0;
  std::int64_t rank_ = 0;
};

// Returns the matrices of a tower's feed-forward part.
std::int64_t tower_matrices(const std::string& type) { return type == "pixtral" || type == "qwen2_5_vl" ? 3 : 2; }

// A matrix that merges neighbouring patches into a token, and one to the width of the text; of some towers for several layers.
std::uint64_t merger_elements(const ConfigReader& config, std::int64_t width, std::int64_t merged) {
  const std::int64_t output = config.number({"out_hidden_size"}, 0);
  const Json* const deep = config.find({"deepstack_visual_indexes"});
  const auto mergers = static_cast<std::int64_t>(deep != nullptr && deep->is_array() ? deep->size() : 0) + 1;
  return product(mergers, as_signed(product(width * merged, width * merged + output)));
}

// The tower that turns images into tokens: a vision transformer, and what brings it to the width of the text. `whole` is
// the configuration around it.
void add_tower(const ConfigReader& config, const ConfigReader& whole, ServedModel& model) {
  const std::string type = config.text({"model_type"}, "");
  // Qwen2-VL calls the width of the text "hidden_size".
  const std::int64_t width = type == "qwen2_vl"
                                 ? config.number({"embed_dim"}, 1280)
                                 : config.number({"vt_hidden_size", "hidden_size", "embed_dim", "width"}, 0);
  const std::int64_t layers = config.number({"vt_num_hidden_layers", "num_hidden_layers", "depth", "layers"}, 0);
  CACHALOT_REQUIRE(layers <= 10000, "{}: {} layers in 'vision_config' are no model", config.path(), layers);
  const std::int64_t inner = config.number({"vt_intermediate_size", "intermediate_size"}, 4 * width);
  const std::int64_t patch = config.number({"patch_size"}, 14);
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    model.tensors.push_back(
        {.name = fmt::format("vision_tower.layers.{}", layer),
         .elements = product(width, 4 * width + tower_matrices(type) * inner + 9) + product(inner, 1)});
  }
  const std::int64_t frames = config.number({"temporal_patch_size"}, 1);
  std::uint64_t more = product(width, 3 * patch * patch * frames);
  const std::int64_t side = whole.number({"spatial_merge_size"}, config.number({"spatial_merge_size"}, 1));
  if (type == "pixtral") {
    more += product(width, as_signed(product(side * side, width))) + product(model.hidden, width + model.hidden);
  } else if (side > 1 && type.starts_with("qwen")) {
    more += merger_elements(config, width, side * side);
    if (config.find({"out_hidden_size"}) == nullptr) more += product(width * side * side, model.hidden);
  } else {
    more += product(width, model.hidden);
  }
  more += product(width, config.number({"num_position_embeddings"}, 0));
  model.tensors.push_back({.name = "vision_tower.embeddings", .elements = more, .split = Split::replicated});
}

Json json_in(const std::string& path) {
  InputFile file(path, "--model");
  std::string text;
  std::string part(1 << 16, '\0');
  constexpr std::size_t kMost = 64 << 20;
  while (const std::size_t bytes = file.read(part.data(), part.size())) {
    text.append(part, 0, bytes);
    CACHALOT_REQUIRE(text.size() <= kMost, "{}: is too large for a config.json, which has 64 MiB at most", path);
  }
  CACHALOT_REQUIRE(file.trouble().empty(), "{}: {}", path, file.trouble());
  // Python writes numbers that JSON does not have.
  static const std::regex beyond_json("-?\\b(Infinity|NaN)\\b");
  Json json = Json::parse(std::regex_replace(text, beyond_json, "null"), nullptr, false);
  CACHALOT_REQUIRE(json.is_object(), "{}: is not a config.json: it is not a JSON object", path);
  return json;
}

// Throws InvalidArgument where the member is there and is neither an object nor null.
const Json& member_or(const Json& json, const char* name, const Json& otherwise, const std::string& path) {
  const auto found = json.find(name);
  if (found == json.end() || found->is_null()) return otherwise;
  CACHALOT_REQUIRE(found->is_object(), "{}: '{}' is {:.40}, and must be an object", path, name, found->dump());
  return *found;
}

std::uint64_t dtype_bytes_of(const std::string& dtype, const std::string& path) {
  if (dtype == "float32" || dtype == "torch.float32") return 4;
  const bool is_half = dtype.ends_with("float16") || dtype == "auto";
  CACHALOT_REQUIRE(is_half, "{}: the dtype '{:.40}' is not one of bfloat16, float16, float32", path, dtype);
  return 2;
}

// The type of the text part: that of "gemma3" is "gemma3_text", for example.
std::string text_type(const Json& whole, const Json& text, const ConfigReader& reader) {
  std::string own = reader.text({"model_type"}, "");
  if (&whole == &text || !own.empty()) return own;
  return ConfigReader(whole, reader.path()).text({"model_type"}, "") + "_text";
}

}  // namespace

std::uint64_t ServedModel::parameters() const {
  std::uint64_t all = 0;
  for (const Tensor& tensor : tensors) all += tensor.name == "rotary" ? 0 : tensor.elements;
  return all;
}

ServedModel read_served_model(const std::string& path) {
  namespace fs = std::filesystem;
  const bool is_folder = fs::is_directory(path);
  ServedModel model;
  model.path = is_folder ? (fs::path(path) / "config.json").string() : path;
  const Json whole = json_in(model.path);
  const Json& text = member_or(whole, "text_config", whole, model.path);
  const ConfigReader config(text, model.path);
  model.type = text_type(whole, text, config);
  CACHALOT_REQUIRE(!model.type.empty(), "{}: there is no 'model_type'", model.path);
  const ModelFamily& family = find_family(model.type, model.path);
  const std::string dtype = ConfigReader(whole, model.path).text({"torch_dtype", "dtype"}, "");
  model.dtype_bytes =
      dtype_bytes_of(dtype.empty() ? config.text({"torch_dtype", "dtype"}, "bfloat16") : dtype, model.path);
  model.state_bytes = config.text({"mamba_ssm_cache_dtype"}, "") == "float32" ? 4 : model.dtype_bytes;
  Builder(config, family, model).build();
  const Json& vision = member_or(whole, "vision_config", whole, model.path);
  if (&vision != &whole) add_tower(ConfigReader(vision, model.path), ConfigReader(whole, model.path), model);
  const Json& of_text = member_or(text, "quantization_config", whole, model.path);
  const Json& stored = member_or(whole, "quantization_config", of_text, model.path);
  if (&stored != &whole) model.quantization = quantization_of(stored, model.path);
  if (is_folder) model.stored = safetensors_in(path);
  return model;
}

}  // namespace cachalot::tools
