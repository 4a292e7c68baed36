// An image in the form that the driver takes.
//
// Ownership: shares the image's bytes. Threads: any. Errors: none; the driver refuses a malformed image.
#pragma once

#include <utility>
#include <vector>

#include "common/fatbin/image.h"
#include "server/worker/images/images.h"

namespace gpupool::worker {

// If the image consists of several containers, this is a wrapper around the first one that refers to the others, so
// that the driver links them.
class Loadable {
  public:
    explicit Loadable(ImageBytes image) : image_(std::move(image)) {
        const auto joined = fatbin::inspect_joined(*image_);
        if (!joined || joined->prelinked.empty()) {
            return;  // leave it to the driver to refuse a malformed image
        }
        for (const fatbin::Bytes part : joined->prelinked) {
            parts_.push_back(part.data());
        }
        parts_.push_back(nullptr);
        wrapper_ = {fatbin::kWrapperMagic, fatbin::kWrapperVersionLinked, joined->bytes.data(), parts_.data()};
    }
    Loadable(const Loadable&) = delete;
    Loadable& operator=(const Loadable&) = delete;

    const void* image() const {
        return parts_.empty() ? static_cast<const void*>(image_->data()) : static_cast<const void*>(&wrapper_);
    }

  private:
    ImageBytes image_;
    std::vector<const void*> parts_;
    fatbin::Wrapper wrapper_{};
};

}  // namespace gpupool::worker
