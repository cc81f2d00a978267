import torch

torch.manual_seed(0)


def repgt(pred_boxes, rois_inside_ws):
    losses = []
    for i in range(len(pred_boxes)):
        inside = pred_boxes[i, rois_inside_ws[i] != 0]
        boxes = inside.view(int(inside.shape[0]) / 4, 4)
        losses.append((boxes[:, 2:] - boxes[:, :2]).clamp(min=0).prod(1).mean())
    return torch.stack(losses)


pred_boxes = torch.rand(2, 6, 4)
rois_inside_ws = torch.ones(2, 6, 4)
rois_inside_ws[:, 4:] = 0
areas = repgt(pred_boxes, rois_inside_ws)
