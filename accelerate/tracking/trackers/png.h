#pragma once

#include <string>

#include "accelerate/tracking/trackers/tracker.h"

namespace accelerate {

/// The picture as a PNG file (8 bits a channel; ISO/IEC 15948), compressed by zlib.
/// @throws ConfigError when there are not 1 to 4 channels, a size is not positive or above 2^31 - 1, or the
/// number of bytes is not height * width * channels.
std::string encode_png(const ImageView& image);

}  // namespace accelerate
