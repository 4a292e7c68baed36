// Finds out whether kernels of an image may print.
//
// The driver writes out what kernels printed only when something is synchronized. A session none of whose images can
// print is spared that cost (scheduler.h).
//
// Ownership: keeps nothing.
// Threads: any, but not the dispatcher: it may have to decompress the image.
// Errors: an image that cannot be read counts as one that prints.
#pragma once

#include "common/fatbin/image.h"

namespace gpupool::worker {

// `image`: in the form of Images, possibly several containers one after the other.
bool image_prints(fatbin::Bytes image);

}  // namespace gpupool::worker
