"""Rounding of the matrices of a checkpoint that is written, with and without calibration.

| file             | content                                                                     |
|------------------|-----------------------------------------------------------------------------|
| `schemes`        | the scheme of each matrix, for the requested precision                      |
| `scale_search`   | steps of groups, by the weighted error of several candidates                |
| `error_feedback` | rounds a matrix so that later inputs correct the errors of earlier inputs   |
| `calibration`    | runs texts through a model, layer by layer, and rounds its matrices         |
"""
