// The storage of quantized weights: their bits with their share of scales and zero points.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/check.h"
#include "cachalot/errors.h"
#include "tools/serving/config_reader.h"
#include "tools/serving/served_model.h"

namespace cachalot::tools {
namespace {

// A group of weights has one scale, and one zero point as wide as a weight where there are zero points.
struct Format {
  std::string_view name;
  double bits;
  double group;  // 0: a scale for a row or a tensor, which is nothing beside it
  double scale_bits = 0;
  bool has_zero_points = false;
  bool experts_alone = false;
};

constexpr std::array kFormats{
    Format{"fp8", 8, 0},
    Format{"fbgemm_fp8", 8, 0},
    Format{"int8", 8, 0},
    Format{"awq", 4, 128, 16, true},
    Format{"gptq", 4, 128, 16, true},
    Format{"int4", 4, 128, 16},
    Format{"bitsandbytes", 4, 64, 32},
    Format{"mxfp4", 4, 32, 8, false, true},
    Format{"nvfp4", 4, 16, 8},
};

Quantization stored_as(const Format& format, double bits, double group) {
  const double more = format.scale_bits + (format.has_zero_points ? bits : 0);
  return {.method = std::string(format.name),
          .bits = bits + (group > 0 ? more / group : 0),
          .experts_alone = format.experts_alone};
}

const Format* find_format(std::string_view name) {
  const auto found = std::ranges::find(kFormats, name, &Format::name);
  return found == kFormats.end() ? nullptr : &*found;
}

std::string known_formats() {
  std::string all;
  for (const Format& format : kFormats) all += fmt::format("{}, ", format.name);
  return all;
}

// llm-compressor's: the first group says how its weights are stored.
Quantization compressed_tensors(const ConfigReader& config) {
  const Json* const groups = config.find({"config_groups"});
  const bool has_groups = groups != nullptr && groups->is_object() && !groups->empty();
  const Json none = Json::object();
  const Json* const found = has_groups ? ConfigReader(groups->front(), config.path()).find({"weights"}) : nullptr;
  const ConfigReader weights(found == nullptr ? none : *found, config.path());
  const auto bits = static_cast<double>(weights.number({"num_bits"}, 8));
  const bool is_float = weights.text({"type"}, "") == "float";
  if (bits > 4) return stored_as(*find_format(is_float ? "fp8" : "int8"), bits, 0);
  const auto group = static_cast<double>(weights.number({"group_size"}, 128));
  return stored_as(*find_format(is_float ? "nvfp4" : "int4"), bits, group);
}

// Patterns are regular expressions behind "re:", names with *, and names of modules that contain others.
std::regex pattern_of(const std::string& text, const std::string& path) {
  try {
    if (text.starts_with("re:")) return std::regex(text.substr(3));
  } catch (const std::regex_error&) {
    throw InvalidArgument(fmt::format("{}: '{:.60}' is not a regular expression", path, text));
  }
  std::string pattern;
  for (const char letter : text) {
    if (letter == '*') {
      pattern += ".*";
    } else {
      if (std::string_view(".[](){}+?^$|\\").find(letter) != std::string_view::npos) pattern += '\\';
      pattern += letter;
    }
  }
  return std::regex("(^|\\.)" + pattern + "(\\.|$)");
}

Quantization of_method(const std::string& method, const ConfigReader& config) {
  if (method == "compressed-tensors") return compressed_tensors(config);
  if (method == "modelopt") {
    const bool is_fp4 = config.text({"quant_algo"}, "").find("FP4") != std::string::npos;
    return quantization_named(is_fp4 ? "nvfp4" : "fp8");
  }
  const bool is_int8 = method == "bitsandbytes" && config.flag({"load_in_8bit"}, false);
  const Format* const format = find_format(is_int8 ? "int8" : method);
  CACHALOT_REQUIRE(format != nullptr,
                   "{}: the quant_method '{:.40}' is not known; known are {}compressed-tensors, modelopt",
                   config.path(), method, known_formats());
  const auto bits = static_cast<double>(config.number({"bits"}, static_cast<std::int64_t>(format->bits)));
  CACHALOT_REQUIRE(bits >= 1 && bits <= 16, "{}: 'bits' is {}, and must be from 1 to 16", config.path(), bits);
  const Json* const group_size = config.find({"group_size"});
  const bool is_by_row = group_size != nullptr && group_size->is_number() && group_size->get<double>() < 0;
  const double group =
      is_by_row ? 0 : static_cast<double>(config.number({"group_size"}, static_cast<std::int64_t>(format->group)));
  Quantization stored = stored_as(*format, bits, group);
  const Json* const block = config.find({"weight_block_size"});
  constexpr double kScaleBits = 32;
  if (block != nullptr && block->is_array() && block->size() == 2 && block->at(0).is_number() &&
      block->at(1).is_number())
    stored.bits += kScaleBits / std::max(1.0, block->at(0).get<double>() * block->at(1).get<double>());
  return stored;
}

}  // namespace

bool Quantization::covers(const Tensor& tensor) const {
  if (method.empty() || tensor.role == Role::other || (experts_alone && tensor.role != Role::expert)) return false;
  return std::ranges::none_of(ignored, [&](const auto& pattern) { return std::regex_search(tensor.name, pattern); });
}

Quantization quantization_of(const Json& config, const std::string& path) {
  const ConfigReader reader(config, path);
  Quantization quantization = of_method(reader.text({"quant_method"}, ""), reader);
  for (const char* name :
       {"ignore", "modules_to_not_convert", "ignored_layers", "exclude_modules", "llm_int8_skip_modules"}) {
    for (const std::string& pattern : reader.texts({name})) quantization.ignored.push_back(pattern_of(pattern, path));
  }
  return quantization;
}

Quantization quantization_named(std::string_view name) {
  if (name == "none") return {};
  const Format* const format = find_format(name);
  CACHALOT_REQUIRE(format != nullptr, "--quantization {:.40} is not known; known are {}none", name, known_formats());
  return stored_as(*format, format->bits, format->group);
}

}  // namespace cachalot::tools
