#include "client/core/images/function_attributes.h"

#include <algorithm>

#include "client/core/dispatch/remote.h"

namespace gpupool::client {

FunctionAttributes::OnDevice* FunctionAttributes::on(CUdevice device) {
    if (device < 0 || static_cast<std::size_t>(device) >= kMaxDevices) {
        return nullptr;
    }
    std::atomic<OnDevice*>& place = by_device_[static_cast<std::size_t>(device)];
    if (OnDevice* const there = place.load(std::memory_order_acquire)) {
        return there;
    }
    const Lock lock(mutex_);
    if (OnDevice* const there = place.load(std::memory_order_relaxed)) {
        return there;
    }
    owned_.push_back(std::make_unique<OnDevice>());
    place.store(owned_.back().get(), std::memory_order_release);
    return owned_.back().get();
}

void FunctionAttributes::learn(CUdevice device, const OnDevice::Values& values) {
    if (OnDevice* const own = on(device)) {
        own->learn(values);
    }
}

CUresult FunctionAttributes::OnDevice::load(CUfunction function, CUdevice device) {
    if (known_.load(std::memory_order_acquire)) {
        return CUDA_SUCCESS;
    }
    Values values = unknown();
    unsigned count = 0;
    const CUresult result = remote<calls::gpFunctionAttributes>(function, device, values.data(),
                                                                static_cast<unsigned>(values.size()), &count);
    if (result != CUDA_SUCCESS) {
        return result;
    }
    learn(values);
    known_.store(true, std::memory_order_release);  // even if the driver reported none
    return CUDA_SUCCESS;
}

FunctionAttributes::OnDevice::Values FunctionAttributes::OnDevice::unknown() {
    Values values;
    values.fill(kUnknownAttribute);
    return values;
}

void FunctionAttributes::OnDevice::learn(const Values& values) {
    const bool all_unknown = std::all_of(values.begin(), values.end(), [](int v) { return v == kUnknownAttribute; });
    if (all_unknown || known_.load(std::memory_order_acquire)) {
        return;  // nothing to learn
    }
    for (std::size_t i = 0; i < values.size(); ++i) {
        values_[i].store(values[i], std::memory_order_relaxed);
    }
    known_.store(true, std::memory_order_release);
}

void FunctionAttributes::OnDevice::set(CUfunction_attribute attribute, int value) {
    values_[static_cast<std::size_t>(attribute)].store(value, std::memory_order_relaxed);
    const Lock lock(mutex_);
    answers_.clear();
}

void FunctionAttributes::OnDevice::forget() {
    known_.store(false, std::memory_order_release);
    const Lock lock(mutex_);
    answers_.clear();
}

bool FunctionAttributes::OnDevice::find_answer(const std::string& question, std::size_t& answer) const {
    const Lock lock(mutex_);
    const auto it = answers_.find(question);
    if (it == answers_.end()) {
        return false;
    }
    answer = it->second;
    return true;
}

void FunctionAttributes::OnDevice::keep_answer(const std::string& question, std::size_t answer) {
    const Lock lock(mutex_);
    if (answers_.size() >= kMaxAnswers) {
        answers_.clear();
    }
    answers_[question] = answer;
}

}  // namespace gpupool::client
