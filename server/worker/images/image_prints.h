// Do kernels of an image print?
//
// What kernels print the driver writes out when something is synchronized. A session of which no image can print is
// spared that (scheduler.h).
//
// Ownership: none kept. Threads: any; it may have to decompress the image, so not the dispatcher's. Errors: an image
// that cannot be read counts as one that prints.
#pragma once

#include "common/fatbin/image.h"

namespace gpupool::worker {

// `image`: as Images holds it, containers in a row included.
bool image_prints(fatbin::Bytes image);

}  // namespace gpupool::worker
