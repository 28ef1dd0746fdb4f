// Sums of two tensors, number by number, in float32.

template <class T> void add_rows(const Sum& p, int64_t begin, int64_t end) {
    const T *x = static_cast<const T*>(p.x), *y = static_cast<const T*>(p.y);
    T* out = static_cast<T*>(p.out);
#pragma omp simd
    for (int64_t i = begin * p.width; i < end * p.width; i++) narrow(widen(x[i]) + widen(y[i]), out[i]);
}

void add(DType dtype, const Sum& p, int64_t begin, int64_t end) {
    dtype == FLOAT32 ? add_rows<float>(p, begin, end) : add_rows<bfloat16>(p, begin, end);
}
